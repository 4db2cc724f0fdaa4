"""Run a CRIU that resets what was written, and look at the tree while it is frozen for that."""

from __future__ import annotations

from pathlib import Path

from crckpt.criu.engine import Outcome, follow
from crckpt.criu.hold import gate
from crckpt.ops.incremental import Way
from crckpt.store import load


def gated(command: tuple[str, ...], log: Path, way: Way) -> Outcome:
    """CRIU's run. Beside its `log` there is a directory for the hold meanwhile."""
    with gate(log.with_suffix(".hold")) as hold:
        return follow(command, log, hold=hold, in_hold=way.frozen, meanwhile=load)
