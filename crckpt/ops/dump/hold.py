"""Dump a tree, and run a step while CRIU holds it frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from crckpt.criu.engine import CriuResult, run_criu
from crckpt.criu.hold import Hold, gate
from crckpt.host.proc.task_states import TaskStates, read_task_states
from crckpt.ops.dump.aftermath import raise_if_failed
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.launch import StartedCriu, Workspace, started_criu
from crckpt.ops.dump.lineage import Lineage
from crckpt.store import Preparation


class HeldTree(Struct, frozen=True):
    """A tree that CRIU holds frozen at `hold`, after it has written all images, or at the gate: before most of them."""

    target: DumpTarget
    hold: Hold

    def read_states(self) -> TaskStates:
        """Read from the kernel what each task of the tree is."""
        return read_task_states(self.target.pid)

    def check(self) -> None:
        """Raise GaveUp if CRIU no longer waits: the tree runs, or soon will."""
        self.hold.check()


InHold = Callable[[HeldTree], None]
"""Called once with the frozen tree. A return lets CRIU go on. An exception has CRIU undo its work, and is raised."""


def dump_held(
    target: DumpTarget,
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
    lineage, stop = target.lineage, target.request.stop
    if lineage is not None and lineage.tracks and not stop:
        result = run_gated(target, target.command(workspace.paths), workspace.log, lineage, preparation, in_hold)
        return raise_if_failed(target, result)
    # What works next to CRIU slows it a little. With --async the user waits for the tree alone.
    meanwhile = None if target.request.asynchronous else preparation
    with _released_criu(target, workspace, waiting) as criu:
        last = criu.last

        def act() -> None:
            assert last is not None
            target.check_root()
            if lineage is not None and stop:
                lineage.report_freeze()
            in_hold(HeldTree(target, last))

        return raise_if_failed(target, criu.run.follow(last, act, meanwhile))


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
            in_hold(HeldTree(target, hold))

        return run_criu(command, log, hold=hold, in_hold=act, meanwhile=preparation, tree=target.pid)


@contextmanager
def _released_criu(target: DumpTarget, workspace: Workspace, waiting: StartedCriu | None) -> Iterator[StartedCriu]:
    """A CRIU that freezes the tree now: the one that is `waiting`, or another."""
    if waiting is None:
        with started_criu(target.command, workspace, target.pid, stop=target.request.stop) as another:
            yield another
        return
    # From here on, CRIU freezes whatever process has the PID.
    target.check_root()
    waiting.release()
    yield waiting
