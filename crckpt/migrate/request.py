"""The user's request for a migration, and its result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from crckpt.causes import Finding
from crckpt.migrate.wire.messages import RestoreOptions
from crckpt.model import CheckpointId
from crckpt.ops.context import Progress


class MigrateRequest(Struct, frozen=True):
    """The user's request.

    - `host`: as for ssh(1); `remote_crckpt`: the command that runs crckpt there, `remote_store`: the
      store there
    - `check`: only check whether it would work
    - `max_downtime_ms`: rounds repeat until the estimated downtime is at most this; `abort_over`: abort the move if
      it never is
    - `max_rounds`: of copies while the tree runs
    - `bandwidth`: bytes a second, at most; moves with the same `bandwidth_clock` share it
    - `options`: for the restore on `host`, with the addresses that move along
    - `before_freeze`, `address_hook`: commands of the user (`migrate.source.hooks`); empty: none
    - `send_files`: send files that the other host lacks
    """

    target: str
    host: str
    job: str | None = None
    check: bool = False
    max_downtime_ms: float | None = None
    abort_over: bool = False
    max_rounds: int = 8
    bandwidth: int | None = None
    bandwidth_clock: Path | None = None
    options: RestoreOptions = RestoreOptions()
    before_freeze: str = ""
    address_hook: str = ""
    send_files: bool = False
    other_program: bool = False
    remote_crckpt: str = "crckpt"
    remote_store: str | None = None


class RoundSummary(Struct, frozen=True):
    """A round of copying while the tree ran.

    - `raw_bytes`: memory that was copied
    - `sent_bytes`: what the other store lacked of it, compressed
    - `seconds`: copying, storing and sending
    - `frozen_ms`: how long the tree was frozen
    - `estimated_ms`: the downtime if the tree were moved now
    - `written_per_s`: bytes of memory that the tree writes per second; null if that is not known
    """

    raw_bytes: int
    sent_bytes: int
    seconds: float
    frozen_ms: float
    estimated_ms: float
    written_per_s: float | None = None


class FileToSend(Struct, frozen=True):
    """A file that the destination lacks, and a move with --send-files would send."""

    path: str
    bytes: int


class MigrateResult(Struct, frozen=True):
    """The result of a migration, or of a check.

    - `pid`: of the root on `host`, if it is known
    - `downtime_ms`: from CRIU's freeze here until the hold there let the tree run; a client waits as long, plus or
      minus the way of its packets, which TCP sends again; None if it is not known, because the connection was
      lost in between
    - `why_stopped`: why no more rounds were made
    - `sent_bytes`: all that was sent to the other host; `raw_bytes`: the size of the last images
    - `over_budget`: the downtime was longer than --max-downtime
    - `memory_bytes`, `to_send`: of a check: what would be sent, before compression
    - `terminal_log`: on `host`, the file with the output of the tree's new terminal; empty if it has none
    """

    job: str
    host: str
    move: str | None = None
    pid: int | None = None
    checkpoint: CheckpointId | None = None
    rounds: tuple[RoundSummary, ...] = ()
    why_stopped: str = ""
    sent_bytes: int = 0
    raw_bytes: int = 0
    downtime_ms: float | None = None
    seconds: float = 0.0
    over_budget: bool = False
    is_check: bool = False
    memory_bytes: int = 0
    to_send: tuple[FileToSend, ...] = ()
    warnings: tuple[Finding, ...] = ()
    terminal_log: str = ""


class MoveReport(Struct, frozen=True):
    """Shows progress to the user.

    - `copying`, `storing`, `sending`: bytes done, and in all, of a step: memory is copied while the program runs; what
      was copied is compressed and stored here; what the other store lacks is sent
    - `say`: show which step begins
    - `end_round`: show what a round has copied, by its number
    """

    copying: Progress
    storing: Progress
    sending: Progress
    say: Callable[[str], None]
    end_round: Callable[[int, RoundSummary], None]
