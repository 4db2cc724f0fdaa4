"""Run a CRIU that resets what was written, and look at the tree while it is frozen for that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from crckpt.criu.engine import CriuResult, run_criu
from crckpt.criu.hold import gate
from crckpt.ops.dump.examine import Subject
from crckpt.ops.dump.lineage import Way
from crckpt.store import load


def gated(
    subject: Subject, command: tuple[str, ...], log: Path, way: Way, frozen: Callable[[], None] = lambda: None
) -> CriuResult:
    """CRIU's run; `frozen` is called when the tree is. Beside its `log` there is a directory for the hold meanwhile."""

    def look() -> None:
        subject.check_root()
        way.frozen()
        frozen()

    with gate(log.with_suffix(".hold")) as hold:
        return run_criu(command, log, hold=hold, in_hold=look, meanwhile=load, tree=subject.seen.tree.root.pid)
