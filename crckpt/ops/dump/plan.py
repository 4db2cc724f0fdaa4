"""A planned dump, and CRIU that performs it: crckpt acts while CRIU holds the tree frozen."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from crckpt.causes import Finding
from crckpt.criu.command import Paths, dump_command
from crckpt.criu.engine import CriuResult, run_criu
from crckpt.criu.hold import Hold, gate
from crckpt.host import proc
from crckpt.ops.context import Progress, ignore_progress, pid_namespace_words, setpriv_words
from crckpt.ops.dump.aftermath import raise_if_failed
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.launch import StartedCriu, Workspace, started_criu
from crckpt.ops.dump.lineage import Lineage, ParentImages
from crckpt.ops.dump.result import PreCopyResult
from crckpt.store import Preparation
from crckpt.tracking.preload.library import dump_words

_REPORTED_EACH_S = 0.1

InHold = Callable[[Hold], None]
"""Called once while the tree is frozen. A return lets CRIU go on. CRIU undoes its work after an exception."""


class PlannedDump(Struct, frozen=True):
    """A dump of a target, as it is to be made.

    `lineage` is None unless the dump is to be incremental, or the base of one; `pre_copy` are the rounds before it.
    `warnings` come after those on the target itself. `tracked_before` is the root that the job's last checkpoint names
    as tracked.
    """

    target: DumpTarget
    lineage: Lineage | None = None
    pre_copy: PreCopyResult | None = None
    warnings: tuple[Finding, ...] = ()
    tracked_before: proc.Identity | None = None

    @property
    def parent(self) -> ParentImages | None:
        """The checkpoint that the dump counts from."""
        return self.lineage.parent if self.lineage is not None else None

    def command(self, paths: Paths) -> tuple[str, ...]:
        """CRIU's command line for the dump with these paths."""
        target, lineage = self.target, self.lineage
        root, enter, as_user = target.observed.tree.root, target.plan.enter, target.plan.as_user
        # A CRIU in the tree's PID namespace knows the root by the number that it has there.
        pid = root.ns_pids[-1] if "pid" in enter else root.pid
        tracks = lineage is not None and lineage.tracks
        words = dump_command(
            target.criu.path,
            pid,
            paths,
            target.plan.options,
            leave_running=not target.request.stop,
            unprivileged=as_user is not None,
            track=tracks,
            base=str(self.parent.directory) if self.parent else None,
        )
        if lineage is not None and tracks:
            words = (*lineage.environment, *words)
        else:
            words = (*dump_words(target.criu.path, enter=pid if enter else None), *words)
        user = setpriv_words(as_user, target.observed.own_capabilities)
        return (*(pid_namespace_words(root.pid) if "pid" in enter else ()), *user, *words)

    def run_held(
        self, workspace: Workspace, waiting: StartedCriu | None, preparation: Preparation, in_hold: InHold
    ) -> CriuResult:
        """Have CRIU, the one that is `waiting` or another, dump the tree; call `in_hold` while the tree is frozen.

        If the tree is to stop, that is after all images are written, and CRIU ends the tree after it. Else it is at
        CRIU's last hold or at the gate, or never where no hold is possible. `preparation` runs meanwhile.

        Raises what `raise_if_failed` raises.
        """
        target, lineage, stop = self.target, self.lineage, self.target.request.stop
        has_base, context = self.parent is not None, target.context
        # After rounds `memory` is an estimate of what is left. Else how much an incremental dump copies is not known.
        progress = context.copy_progress if self.pre_copy is not None or not has_base else ignore_progress
        with ExitStack() as stack:
            end_report = stack.enter_context(copying_reported(workspace.images, target.observed.memory, progress))
            if lineage is not None and lineage.tracks and not stop:
                words = self.command(Paths(workspace.images, workspace.work))
                result = run_gated(target, words, workspace.log, lineage, preparation, in_hold)
                return raise_if_failed(target, result, has_base=has_base)
            # Whatever process has the PID when CRIU is released or started is frozen.
            if waiting is not None:
                target.check_root()
                waiting.release()
            criu = waiting or stack.enter_context(started_criu(self.command, workspace, target.pid, stop=stop))
            last = criu.last

            def act() -> None:
                assert last is not None
                target.check_root()
                if stop:
                    # From now on the store reports its own progress.
                    end_report()
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


@contextmanager
def copying_reported(images: Path, memory: int, progress: Progress) -> Iterator[Callable[[], None]]:
    """While the block runs, report how many of `memory` bytes are in `images`. Gives a function that ends that.

    CRIU reports nothing itself, but its images grow.
    """
    if progress is ignore_progress or memory == 0:
        yield lambda: None
        return
    is_over = threading.Event()

    def report() -> None:
        progress(0, memory)
        while not is_over.wait(_REPORTED_EACH_S):
            copied = 0
            # CRIU makes the files while we look.
            with suppress(OSError), os.scandir(images) as entries:
                for entry in entries:
                    with suppress(OSError):
                        copied += entry.stat(follow_symlinks=False).st_size if entry.name.startswith("pages-") else 0
            # The tree may have grown since its memory was measured.
            progress(min(copied, memory), memory)

    thread = threading.Thread(target=report, daemon=True)

    def end() -> None:
        is_over.set()
        thread.join()

    thread.start()
    try:
        yield end
    finally:
        end()
