"""The result of a restore."""

from __future__ import annotations

from msgspec import Struct

from crckpt.criu.find import Criu
from crckpt.helper.terminal.client import TerminalHolder
from crckpt.host.process.job_control import Job
from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.store import Checkpoint


class RestoreResult(Struct, frozen=True):
    """The result of a restore. After a dry run `pid` is None.

    - `pid`: the root of the tree, as we see it; `inner_pid`: the PID that it has in its new PID namespace
    - `job`: the program to wait for, in the foreground
    - `holder`: of the new terminal of the tree, if it got one; then `job.child` is a child of the holder
    - `copiers`: PIDs of our processes that copy what the tree writes; they end after it
    - `skipped`: (id, reason) of newer checkpoints that could not be restored
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
    skipped: tuple[tuple[str, str], ...] = ()
    copiers: tuple[int, ...] = ()
