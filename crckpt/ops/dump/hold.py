"""Dump a tree, and run a step while CRIU holds it frozen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from crckpt.criu.engine import CriuResult, run_criu
from crckpt.criu.hold import Hold, gate
from crckpt.ops.dump.aftermath import raise_if_failed
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.launch import StartedCriu, Workspace, started_criu
from crckpt.ops.dump.lineage import Lineage
from crckpt.ops.dump.plan import PlannedDump
from crckpt.store import Preparation

InHold = Callable[[Hold], None]
"""Called once while the tree is frozen. A return lets CRIU go on. CRIU undoes its work after an exception."""


def dump_held(
    dump: PlannedDump,
    workspace: Workspace,
    waiting: StartedCriu | None,
    preparation: Preparation,
    in_hold: InHold,
) -> CriuResult:
    """Have CRIU dump the tree, by the one that is `waiting` or by another, and call `in_hold` while the tree is frozen.

    If the tree is to stop, that is after all images are written, and CRIU ends the tree after it. Else it is at CRIU's
    last hold or at the gate, or never where no hold is possible. `preparation` runs meanwhile.

    Raises DumpFailed, explained, if CRIU failed.
    """
    target, lineage, stop = dump.target, dump.lineage, dump.target.request.stop
    has_base = dump.parent is not None
    if lineage is not None and lineage.tracks and not stop:
        result = run_gated(target, dump.command(workspace.paths), workspace.log, lineage, preparation, in_hold)
        return raise_if_failed(target, result, has_base=has_base)
    with ExitStack() as stack:
        # Whatever process has the PID when CRIU is released or started is frozen.
        if waiting is not None:
            target.check_root()
            waiting.release()
        criu = waiting or stack.enter_context(started_criu(dump.command, workspace, target.pid, stop=stop))
        last = criu.last

        def act() -> None:
            assert last is not None
            target.check_root()
            if lineage is not None and stop:
                lineage.report_freeze()
            in_hold(last)

        # What works next to CRIU slows it a little. With --async the user waits for the tree alone.
        meanwhile = None if target.request.asynchronous else preparation
        return raise_if_failed(target, criu.run.follow(last, act, meanwhile), has_base=has_base)


def run_gated(
    target: DumpTarget,
    command: tuple[str, ...],
    log: Path,
    lineage: Lineage,
    preparation: Preparation,
    in_hold: InHold = lambda _: None,
) -> CriuResult:
    """Run a CRIU that resets what was written. At the gate, before it does, the keeper looks at the frozen tree.

    `in_hold` is called then, too. The hold's directory is made next to `log`, and removed.
    """
    with gate(log.with_suffix(".hold")) as hold:

        def act() -> None:
            target.check_root()
            lineage.report_freeze()
            in_hold(hold)

        return run_criu(command, log, hold=hold, in_hold=act, meanwhile=preparation, tree=target.pid)
