"""The user's requests for a restore and for a rehearsal."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from crckpt.preflight.restore.host import Grown, TerminalChoice, Written


class RestoreRequest(Struct, frozen=True):
    """The user's request for a restore.

    - `preflight`: whether blockers prevent the restore; without it CRIU tries what is known to fail
    - `allow_weaker`: whether the tree may come back less protected than it was
    - `terminal`: our descriptor of the terminal that crckpt runs on, if any
    - `tty`: what the tree gets instead of its terminal; `tty_file` is the path for `file`
    - `despite_move`: the program was moved to another host, and no longer runs there
    - `still_runs`: of a dry run: the tree keeps running, and goes on writing its files
    - `shares_kernel`: the tree still is on another host with this kernel, maybe in the same directories
    - `output`: our descriptor for what the tree writes into pipes whose other end is not in the tree (foreground only)
    """

    ref: str
    detach: bool = False
    tcp: Literal["keep", "close"] | None = None
    dry_run: bool = False
    or_older: bool = False
    new_pid_namespace: bool = False
    grown: Grown = "refuse"
    written: Written = "refuse"
    preflight: bool = True
    allow_weaker: bool = False
    terminal: int | None = None
    output: int = 1
    tty: TerminalChoice = "ours"
    tty_file: Path | None = None
    despite_move: bool = False
    still_runs: bool = False
    shares_kernel: bool = False


class RehearsalRequest(Struct, frozen=True):
    """The user's request for a rehearsal: how many seconds the tree runs at most, and a command to run after that.

    `is_stored`: the ref can be named in commands.
    """

    ref: str
    seconds: float = 2.0
    probe: tuple[str, ...] = ()
    is_stored: bool = True

    @property
    def values(self) -> dict[str, str]:
        """The values of its findings."""
        return {"ref": self.ref if self.is_stored else ""}
