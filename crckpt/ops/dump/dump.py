"""Checkpoint a tree. It keeps running, or (`stop`) is ended once its checkpoint is safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from crckpt.errors import Interrupted
from crckpt.host import proc
from crckpt.host.process.signals import interrupts_deferred
from crckpt.ops.context import Context, require_writable_store
from crckpt.ops.dump.launch import criu_started_early, opened_workspace, pinned_target
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.failures import limited_waits_of_dump, nothing_begun_reported
from crckpt.store import is_blank

if TYPE_CHECKING:
    from crckpt.ops.dump.checkpoint import HandOver
    from crckpt.ops.dump.examine import DumpTarget
    from crckpt.ops.dump.result import DumpResult


def dump(
    request: DumpRequest,
    context: Context,
    on_resumed: Callable[[DumpResult], None] = lambda _: None,
    hand_over: HandOver | None = None,
) -> DumpResult:
    """Checkpoint the tree that `request.target` names.

    `on_resumed` is called once the tree runs again, before its checkpoint is stored. If the request is asynchronous,
    later failures are recorded as lost. `hand_over` moves a tree that the dump ends to another host.

    Raises UsageError, PreflightRefused, HostCannot, StoreUnusable, StoreLocked, DumpFailed (the tree keeps running),
    TreeStopped or Interrupted; not Interrupted once the checkpoint is made.
    """
    result: DumpResult | None = None
    try:
        with ExitStack() as stack:
            with nothing_begun_reported(context):
                request.check()
                request, root = stack.enter_context(pinned_target(request, context))
                stack.enter_context(limited_waits_of_dump(root.pid))
                process = proc.read_process(root.pid)
                workspace = waiting = None
                # A dump that is refused makes no store.
                if process is None or request.dry_run or is_blank(context.store):
                    require_writable_store(context)
                else:
                    workspace = stack.enter_context(opened_workspace(context))
                    waiting = stack.enter_context(criu_started_early(request, process, context, workspace))
                with interrupts_deferred():
                    # The other steps take as long to import as CRIU to start. Import them while it starts.
                    from crckpt.ops.dump.aftermath import tree_state_reported
                    from crckpt.ops.dump.checkpoint import make_checkpoint, plan_checkpoint
                    from crckpt.ops.dump.examine import examine_target
                target = examine_target(request, context, root)
                if request.dry_run:
                    return plan_checkpoint(target)
                if workspace is None:
                    workspace = stack.enter_context(opened_workspace(context))
                # An interruption after this block and before the next would leave the tree's state unsaid.
                stack.enter_context(interrupts_deferred())
            with tree_state_reported(target.observed.tree, workspace.log, workspace.repository, context):
                result = make_checkpoint(target, workspace, waiting, on_resumed, hand_over)
    except Interrupted:
        # The interruption came while the workspace was removed. The checkpoint is made: an error would say otherwise.
        if result is None:
            raise
    return result


@contextmanager
def examined(request: DumpRequest, context: Context) -> Iterator[DumpTarget]:
    """Examine the tree that `request.target` names; its root keeps its PID during the block. Nothing is touched.

    What prevents a dump is in its plan. Raises UsageError, TargetNotRunning, HostCannot.
    """
    from crckpt.ops.dump.examine import observe_target
    from crckpt.ops.lazy.family import wait_until_complete

    with ExitStack() as stack:
        with nothing_begun_reported(context):
            request.check()
            request, root = stack.enter_context(pinned_target(request, context))
            stack.enter_context(limited_waits_of_dump(root.pid))
            wait_until_complete(root.pid, context.say)
            target = observe_target(request, context, root)
        yield target
