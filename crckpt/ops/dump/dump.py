"""Checkpoint a tree. It goes on running, or (`stop`) is ended once its checkpoint is safe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from crckpt.errors import Interrupted, UsageError
from crckpt.host import proc
from crckpt.host.process.signals import interrupts_put_off
from crckpt.host.target.hold import held
from crckpt.ops.context import Context, need_root
from crckpt.ops.dump.launch import begun, placed
from crckpt.ops.dump.request import Request
from crckpt.ops.failures import limited_waits_of_dump, untouched_said
from crckpt.store import is_blank

if TYPE_CHECKING:
    from crckpt.ops.dump.commit import Dumped


def dump(request: Request, context: Context, running: Callable[[Dumped], None] = lambda _: None) -> Dumped:
    """Checkpoint the tree that `request.target` names. `running` is called once it runs again, and before it is stored.

    If `request` is asynchronous nobody hears of what fails after that: it is remembered as lost.

    Raises UsageError, PreflightRefused, HostCannot, StoreUnusable, StoreLocked, DumpFailed (the tree runs on),
    TreeStopped or Interrupted; what comes when the checkpoint is made interrupts nothing.
    """
    done: Dumped | None = None
    try:
        with ExitStack() as stack:
            with untouched_said():
                _check(request)
                need_root("to checkpoint a process")
                target = stack.enter_context(held(request.target))
                stack.enter_context(limited_waits_of_dump(target.pid))
                root = proc.read_process(target.pid)
                place = waiting = None
                # Where there is no store yet, a dump that is refused makes none.
                if root is not None and not request.dry_run and not is_blank(context.store):
                    place = stack.enter_context(placed(context))
                    waiting = stack.enter_context(begun(request, root, context, place))
                with interrupts_put_off():
                    # Loaded while CRIU starts.
                    from crckpt.ops.dump.aftermath import tree_state_said
                    from crckpt.ops.dump.commit import dry_run, dumped
                    from crckpt.ops.dump.examine import subject_of
                subject = subject_of(request, context, target)
                if request.dry_run:
                    return dry_run(subject)
                if place is None:
                    place = stack.enter_context(placed(context))
                # Between the two, an interruption would end in half a sentence.
                stack.enter_context(interrupts_put_off())
            with tree_state_said(subject.seen.tree, place.log, place.repository):
                done = dumped(subject, place, waiting, running)
    except Interrupted:
        if done is None:
            raise
    return done


def _check(request: Request) -> None:
    """What cannot be meant together. Raises UsageError."""
    if request.stop and request.asynchronous:
        hint = "leave one of them out"
        raise UsageError("--stop ends the tree once its checkpoint is safe: --async cannot wait for that", hint=hint)
    if request.pre_copy is not None and request.incremental is False:
        hint = "leave one of them out"
        raise UsageError("--pre-copy leaves to the freeze what was written since: that is incremental", hint=hint)
