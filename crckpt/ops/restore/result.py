"""The result of a restore."""

from __future__ import annotations

from msgspec import Struct

from crckpt.criu.find import Criu
from crckpt.helper.terminal.client import TerminalHolder
from crckpt.host.process.job_control import Job
from crckpt.model import CheckpointId
from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.store import Checkpoint


class SkippedCheckpoint(Struct, frozen=True):
    """A newer checkpoint that could not be restored, and why; `is_named`: the reason names it itself."""

    id: CheckpointId
    reason: str
    is_named: bool = True

    def __str__(self) -> str:
        return self.reason if self.is_named else f"{self.id[:12]}: {self.reason}"


class RestoreResult(Struct, frozen=True):
    """The result of a restore. After a dry run `pid` is None.

    - `pid`: the root of the tree, as we see it; `inner_pid`: the PID that it has in its new PID namespace
    - `job`: the program to wait for, in the foreground
    - `holder`: of the new terminal of the tree, if it got one; then `job.child` is a child of the holder
    - `copiers`: PIDs of our processes that copy what the tree writes; they end after it
    - `skipped`: newer checkpoints that could not be restored
    """

    checkpoint: Checkpoint
    verdict: RestoreVerdict
    command: tuple[str, ...]
    criu: Criu
    pid: int | None = None
    inner_pid: int | None = None
    job: Job | None = None
    restore_ms: float = 0.0
    holder: TerminalHolder | None = None
    skipped: tuple[SkippedCheckpoint, ...] = ()
    copiers: tuple[int, ...] = ()
