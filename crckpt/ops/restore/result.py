"""The result of a restore."""

from __future__ import annotations

from msgspec import Struct

from crckpt.criu.find import Criu
from crckpt.host.terminal.restore_side import TerminalHolder
from crckpt.preflight.restore.checks import Verdict
from crckpt.store import Checkpoint


class RestoreResult(Struct, frozen=True):
    """The result of a restore. After a dry run `pid` is None.

    - `pid`: the root of the tree, or the init of its new PID namespace, as we see it
    - `child`: our child to wait for, in the foreground
    - `terminal`: our descriptor of the terminal that the tree got from us, if any
    - `holder`: of the new terminal of the tree, if it got one; then `child` is a child of the holder
    - `root_in_namespace`: our PID of a root that has such a terminal and lives in a new PID namespace
    - `skipped`: (id, reason) of newer checkpoints that could not be restored
    """

    checkpoint: Checkpoint
    verdict: Verdict
    command: tuple[str, ...]
    criu: Criu
    pid: int | None = None
    child: int | None = None
    terminal: int | None = None
    root_in_namespace: int | None = None
    restore_ms: float = 0.0
    holder: TerminalHolder | None = None
    skipped: tuple[tuple[str, str], ...] = ()
