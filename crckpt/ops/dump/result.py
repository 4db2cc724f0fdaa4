"""The results of a dump's steps. The names of `LineageSummary`, `RoundResult` and `PreCopyResult` are JSON keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from crckpt.criu.find import Criu
from crckpt.model import CheckpointId, JobName
from crckpt.preflight.dump.checks import DumpPlan
from crckpt.store import Checkpoint

if TYPE_CHECKING:
    from crckpt.ops.restore.rehearse import RehearsalResult


class RoundResult(Struct, frozen=True):
    """A round: its number since the last checkpoint, what CRIU copied, and how long it took in milliseconds.

    `bytes` are of private and shared memory. `fixed_bytes` of them are not tracked, and copied in each round.
    """

    number: int
    pages: int
    bytes: int
    fixed_bytes: int
    ms: float
    frozen_ms: float


class PreCopyResult(Struct, frozen=True):
    """The rounds before a freeze. With a budget of `max_freeze_ms`, `foreseen_ms` is the estimated freeze.

    `over_budget`: whether the tree was frozen for longer than that; null if it was not frozen, without a budget, and
    with --stop, where the tree never keeps running.
    """

    rounds: tuple[RoundResult, ...]
    foreseen_ms: float | None = None
    max_freeze_ms: float | None = None
    over_budget: bool | None = None


class LineageSummary(Struct, frozen=True):
    """The base that a dump counts from. If there is none, it is full, and `why_full` says why.

    `tracker` is the tracker's name, or empty, and `why` the sentence on it. The dump counts from the last of `rounds`,
    or without rounds from the checkpoint `base`. `whole` are clauses on processes that have no part in that. CRIU's
    images hold `written_pages` of private memory, and leave `left_pages` to what was copied before.
    """

    tracker: str
    why: str
    base: CheckpointId | None = None
    rounds: int = 0
    why_full: str = ""
    whole: tuple[str, ...] = ()
    written_pages: int = 0
    left_pages: int = 0


class DumpResult(Struct, frozen=True):
    """A dump. `checkpoint` is None after a dry run, and while it is `pending`: the tree runs, images are being stored.

    `root_ended`: the tree was to keep running, and its root has ended since. `unreaped` are PIDs of the ended tree that
    its parent still keeps: a restore must wait for them. `lineage` is None unless the dump was to be incremental;
    `rehearsal` unless the tree was rehearsed before it was ended. `frozen_ms` is how long the tree was frozen, with
    `stop` until it ended.
    """

    job: JobName
    pid: int
    plan: DumpPlan
    command: tuple[str, ...]
    criu: Criu
    stop: bool
    frozen_ms: float = 0.0
    pending: bool = False
    checkpoint: Checkpoint | None = None
    unreaped: tuple[int, ...] = ()
    root_ended: bool = False
    lineage: LineageSummary | None = None
    pre_copy: PreCopyResult | None = None
    rehearsal: RehearsalResult | None = None


class PreDumpResult(Struct, frozen=True):
    """A round that was taken alone, what it counts from, and the CRIU that took it."""

    job: JobName
    pid: int
    criu: Criu
    lineage: LineageSummary
    round: RoundResult
