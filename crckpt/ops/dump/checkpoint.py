"""Make the checkpoint of a tree that was examined: rounds, dump, commit. Loaded while CRIU starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from crckpt.criu.command import Paths
from crckpt.criu.engine import read_log
from crckpt.criu.freeze_time import find_freeze
from crckpt.errors import IntegrityError, PreflightRefused
from crckpt.host import proc
from crckpt.host.disk.files import remove_tree
from crckpt.host.proc.task_states import TaskStates
from crckpt.host.process.signals import interrupts_allowed, interrupts_deferred
from crckpt.host.process.yield_cpus import cores_left_to
from crckpt.images.stats import read_dump_stats
from crckpt.model import utc_datetime
from crckpt.ops.context import ignore_progress
from crckpt.ops.dump.aftermath import BaseMismatch
from crckpt.ops.dump.check_job import check_job, warn_of_shared_job
from crckpt.ops.dump.commit import commit_checkpoint
from crckpt.ops.dump.copy_progress import copying_reported
from crckpt.ops.dump.details import Freeze, ask_processes, describe_checkpoint, read_details, read_frozen_details
from crckpt.ops.dump.examine import DumpTarget, examine_again
from crckpt.ops.dump.hand_over import HandOver
from crckpt.ops.dump.hold import HeldTree, dump_held
from crckpt.ops.dump.last_checkpoint import read_last_checkpoint
from crckpt.ops.dump.launch import StartedCriu, Workspace
from crckpt.ops.dump.lineage import open_lineage
from crckpt.ops.dump.pre_copy import pre_copy
from crckpt.ops.dump.reported import Reported, find_securebits
from crckpt.ops.dump.result import DumpResult, LineageSummary, PreCopyResult
from crckpt.ops.dump.tracked_before import find_tracked_root
from crckpt.ops.failures import to_dump_error
from crckpt.store import Checkpoint, Preparation, is_blank

if TYPE_CHECKING:
    from crckpt.ops.restore.rehearse import RehearsalResult

# The system's init may be slow to reap. Another parent reaps at once, or at a time that nobody knows.
_REAPED_BY_INIT_WITHIN_S = 5.0
_REAPED_BY_PARENT_WITHIN_S = 0.5

OnResumed = Callable[[DumpResult], None]
"""Called once the tree runs again, before its checkpoint is stored."""


def make_checkpoint(
    target: DumpTarget,
    workspace: Workspace,
    waiting: StartedCriu | None,
    on_resumed: OnResumed,
    hand_over: HandOver | None = None,
) -> DumpResult:
    """Dump the tree and store its checkpoint, with the CRIU that is `waiting` if its command is what the tree needs."""
    # Check this before anything is copied: a refusal costs the tree nothing yet.
    last = read_last_checkpoint(workspace.repository, target.job)
    check_job(target, last)
    target = replace(warn_of_shared_job(target, last), tracked_before=find_tracked_root(last))
    with ExitStack() as stack:
        target = pre_copy(_with_lineage(target, stack), workspace)
        # It was started with guessed options: of no use if the tree needs others.
        is_tracked = target.lineage is not None and target.lineage.keeper is not None
        if waiting is not None and (is_tracked or waiting.command != target.command(waiting.paths)):
            waiting.give_up()
            waiting = None
        try:
            result = _dump(target, workspace, waiting, on_resumed, hand_over)
        except BaseMismatch as error:
            # Try again only once: without a base there is nothing to mismatch.
            result = _dump(_restart_full(target, error, workspace), workspace, None, on_resumed, hand_over)
    if target.request.stop:
        return replace(result, unreaped=_wait_until_reaped(target.observed.tree))
    return replace(result, root_ended=target.root_has_ended)


def plan_checkpoint(target: DumpTarget) -> DumpResult:
    """Plan a dump. Nothing is started or made. Raises StoreUnusable, and what `check_job` raises."""
    if not is_blank(target.context.store):
        last = read_last_checkpoint(target.context.repository(), target.job)
        check_job(target, last)
        target = replace(warn_of_shared_job(target, last), tracked_before=find_tracked_root(last))
    lineage = target.predict_lineage(wanted=target.request.wants_tracker)
    result = _make_result(target, target.command(Paths(Path("IMAGES"), Path("WORK"))))
    rounds = PreCopyResult(()) if target.request.pre_copy is not None else None
    return replace(result, lineage=lineage, pre_copy=rounds)


def _with_lineage(target: DumpTarget, stack: ExitStack) -> DumpTarget:
    root, wanted = target.observed.tree.root, target.request.wants_tracker
    before = target.tracked_before
    lineage = open_lineage(root, target.criu.path, wanted=wanted, apart=target.runs_apart, before=before)
    if lineage is not None:
        stack.callback(lineage.close)
    return replace(target, lineage=lineage)


def _make_result(target: DumpTarget, command: tuple[str, ...]) -> DumpResult:
    stop = target.request.stop
    return DumpResult(target.job, target.pid, target.plan, command, target.criu, stop, pre_copy=target.pre_copy)


def _dump(
    target: DumpTarget,
    workspace: Workspace,
    waiting: StartedCriu | None,
    on_resumed: OnResumed,
    hand_over: HandOver | None,
) -> DumpResult:
    lineage = target.lineage
    if lineage is not None:
        has_rounds = lineage.keeper is not None and target.pre_copy is not None and bool(target.pre_copy.rounds)
        lineage.begin(workspace.repository, target.criu.path, lambda: workspace.staging)
        # The rounds may have been lost since the estimate: --abort-over holds for the freeze, not for the estimate.
        if has_rounds and lineage.parent is None and not target.request.allows_long_freeze:
            raise PreflightRefused(
                f"the tree would be frozen for longer than estimated: the copied rounds can no longer be "
                f"used ({lineage.summary.why_full})",
                hint="try again, or leave out --abort-over",
            )
    if target.request.stop:
        return _dump_and_stop(target, workspace, waiting, hand_over)
    return _dump_and_resume(target, workspace, waiting, on_resumed)


def _restart_full(target: DumpTarget, error: BaseMismatch, workspace: Workspace) -> DumpTarget:
    """Remove what the failed dump left, and examine the tree again for a full one.

    Raises `error` if the freeze must not be long.
    """
    if target.lineage is None or not target.request.allows_long_freeze:
        raise error
    # Without a base CRIU copies all memory: the next try cannot fail for the same reason.
    target.lineage.restart_full(error.reason)
    # Otherwise images that the next CRIU does not write again would be stored, too.
    remove_tree(workspace.images, "images")
    workspace.images.mkdir(mode=0o700)
    # A program that replaced itself has other files, and may have another name.
    return examine_again(target)


def _dump_and_resume(
    target: DumpTarget, workspace: Workspace, waiting: StartedCriu | None, on_resumed: OnResumed
) -> DumpResult:
    """CRIU freezes the tree, dumps it and lets it run. Then the images are stored while the tree runs."""
    # Ask before the freeze: frozen processes cannot answer, and the freeze must be short.
    target, answers = ask_processes(target)
    details, began = read_details(target, answers), time.monotonic()
    states: TaskStates | None = None

    def read_states(tree: HeldTree) -> None:
        nonlocal states
        states = tree.read_states()
        details.update(read_frozen_details(target))

    preparation = Preparation(workspace.repository, workspace.images)
    with _copying_reported(target, workspace):
        outcome = dump_held(target, workspace, waiting, preparation, read_states)
    target.check_root()
    frozen_ms = read_dump_stats(workspace.stats.read_bytes()).frozen_time / 1000
    # CRIU writes its statistics when the tree has just resumed.
    resumed = utc_datetime(workspace.stats.stat().st_mtime)
    target.check_entered(outcome.log)
    reported = Reported(states, find_securebits(target.observed.tree, answers))
    # The checkpoint's time is the middle of the freeze.
    freeze = Freeze(resumed - timedelta(milliseconds=frozen_ms / 2), frozen_ms, (outcome.ended - began) * 1000)
    new = describe_checkpoint(target, outcome.log, details, freeze)
    result = replace(
        _make_result(target, outcome.argv),
        frozen_ms=frozen_ms,
        lineage=_summarise_lineage(target, workspace),
        pre_copy=_compare_with_budget(target.pre_copy, frozen_ms),
    )
    alone = target.request.asynchronous
    with interrupts_allowed(), workspace.repository.announced(new.job, new.created, new.run_id, alone=alone):
        on_resumed(replace(result, pending=True, root_ended=target.root_has_ended))
        try:
            # Storing takes longer than the freeze, and would use all cores.
            with cores_left_to(target.observed.tree.pids):
                return replace(result, checkpoint=commit_checkpoint(target, workspace, new, reported, preparation))
        except OSError as error:
            raise to_dump_error(error, "the dump", target.context) from error


def _dump_and_stop(
    target: DumpTarget, workspace: Workspace, waiting: StartedCriu | None, hand_over: HandOver | None
) -> DumpResult:
    """CRIU holds the tree frozen until its checkpoint is committed, and only then ends it."""
    target, answers = ask_processes(target)
    parent = target.parent.checkpoint if target.parent is not None and not target.request.searches else None
    preparation, began = Preparation(workspace.repository, workspace.images, parent), time.monotonic()
    made: list[Checkpoint] = []
    rehearsals: list[RehearsalResult] = []
    if target.request.rehearse:
        # The steps of a restore take long to load: not in the freeze.
        from crckpt.ops.dump.rehearse_held import rehearse_held

    def commit(tree: HeldTree) -> None:
        # From now on the store reports its own progress.
        end_report()
        # An interruption during an import would leave a lock taken, and the thread that loads waiting for ever.
        with interrupts_deferred():
            preparation.load()
        # CRIU writes its statistics after the hold only: until then the freeze is at most all of CRIU's work.
        spent_ms = (time.monotonic() - began) * 1000
        log = read_log(workspace.log)
        target.check_entered(log)
        # Read this from the frozen tree: nothing changes any more.
        details = read_details(target, answers, is_frozen=True)
        # Read these last: that a task has a state shows that it was there until now. One that is killed is not frozen.
        reported = Reported(tree.read_states(), find_securebits(target.observed.tree, answers))
        if hand_over is not None:
            hand_over.begin(target.observed.tree, find_freeze(workspace.log, began))
        new = describe_checkpoint(target, log, details, Freeze(datetime.now(UTC), spent_ms, spent_ms))

        def check(checkpoint: Checkpoint, manifest: bytes) -> None:
            if target.request.rehearse:
                rehearsals.append(rehearse_held(target, workspace.repository, checkpoint))
            # If CRIU has given up waiting, the tree runs, and this is no checkpoint of its end.
            tree.check()
            if hand_over is not None:
                hand_over.prepare(checkpoint, manifest)

        at_least = hand_over.at_least if hand_over is not None else 0
        made.append(
            commit_checkpoint(
                target,
                workspace,
                new,
                reported,
                preparation,
                at_least=at_least,
                before=check,
            )
        )
        if hand_over is not None:
            hand_over.decide()

    with _copying_reported(target, workspace) as end_report:
        outcome = dump_held(target, workspace, waiting, preparation, commit)
    if hand_over is not None:
        hand_over.end()
    result = _make_result(target, outcome.argv)
    return replace(
        result,
        checkpoint=made[0],
        lineage=_summarise_lineage(target, workspace),
        rehearsal=rehearsals[0] if rehearsals else None,
    )


def _compare_with_budget(rounds: PreCopyResult | None, frozen_ms: float) -> PreCopyResult | None:
    if rounds is None or rounds.max_freeze_ms is None:
        return rounds
    return replace(rounds, over_budget=frozen_ms > rounds.max_freeze_ms)


def _copying_reported(target: DumpTarget, workspace: Workspace) -> AbstractContextManager[Callable[[], None]]:
    # After rounds `memory` is an estimate of what is left. Else how much an incremental dump copies is not known.
    is_known = target.pre_copy is not None or target.lineage is None or target.lineage.parent is None
    progress = target.context.copy_progress if is_known else ignore_progress
    return copying_reported(workspace.images, target.observed.memory, progress)


def _summarise_lineage(target: DumpTarget, workspace: Workspace) -> LineageSummary | None:
    if target.lineage is None:
        return None
    try:
        return target.lineage.summary_of(read_dump_stats(workspace.stats.read_bytes()))
    except (OSError, IntegrityError):
        # With --stop CRIU writes them after it has ended the tree: a full disk costs these numbers, and no more.
        return target.lineage.summary


def _wait_until_reaped(tree: proc.Tree) -> tuple[int, ...]:
    """PIDs that the ended tree still holds: its root waits for its parent, all others for init."""
    others = (process.identity for process in tree.processes if process is not tree.root)
    left = proc.wait_until_gone(others, _REAPED_BY_INIT_WITHIN_S)
    within = _REAPED_BY_INIT_WITHIN_S if tree.root.ppid == 1 else _REAPED_BY_PARENT_WITHIN_S
    return (*proc.wait_until_gone((tree.root.identity,), within), *left)
