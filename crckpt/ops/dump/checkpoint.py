"""Make the checkpoint of a tree that was examined: plan it, dump the tree, commit. Loaded while CRIU starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from crckpt.causes import Finding
from crckpt.criu.command import Paths
from crckpt.criu.engine import find_freeze, read_log
from crckpt.criu.hold import Hold
from crckpt.errors import DumpFailed, IntegrityError, PreflightRefused
from crckpt.host import proc
from crckpt.host.attributes.opened_files import add_opened_files
from crckpt.host.attributes.signal_owners import add_signal_owners
from crckpt.host.disk.files import remove_tree
from crckpt.host.proc.task_states import TaskStates, read_task_states
from crckpt.host.process.own_limits import cores_left_to
from crckpt.host.process.signals import interrupts_allowed, interrupts_deferred
from crckpt.host.steps import step
from crckpt.images.inventory import read_dump_stats, read_inventory
from crckpt.model import utc_datetime
from crckpt.ops.dump.aftermath import BaseMismatch
from crckpt.ops.dump.details import ask, describe_checkpoint, read_details, read_frozen_details
from crckpt.ops.dump.examine import DumpTarget, check_job, examine_again
from crckpt.ops.dump.launch import StartedCriu, Workspace
from crckpt.ops.dump.lineage import open_lineage
from crckpt.ops.dump.plan import PlannedDump
from crckpt.ops.dump.reported import check_reported, find_securebits
from crckpt.ops.dump.result import DumpResult, PreCopyResult
from crckpt.ops.dump.rounds import pre_copy
from crckpt.ops.failures import to_dump_error
from crckpt.ops.last_checkpoint import read_last_checkpoint
from crckpt.store import BeforeWrite, Checkpoint, NewCheckpoint, Preparation, ingest, is_blank
from crckpt.store.pending import announced
from crckpt.store.read.details import cache_details
from crckpt.tracking.dump_basis import CheckpointBase

if TYPE_CHECKING:
    from crckpt.ops.restore.rehearse import RehearsalResult

# The system's init may be slow to reap. Another parent reaps at once, or at a time that nobody knows.
_REAPED_BY_INIT_WITHIN_S = 5.0
_REAPED_BY_PARENT_WITHIN_S = 0.5

OnResumed = Callable[[DumpResult], None]
"""Called once the tree runs again, before its checkpoint is stored."""


class HandOver(Protocol):
    """The hand-over of a tree to another host. Before `decide` returns, an exception lets the tree continue here."""

    @property
    def at_least(self) -> int:
        """The lowest `sequence` that the checkpoint may have: above all of the other store."""

    def begin(self, tree: proc.Tree, frozen_since: float) -> None:
        """Begin: the images are written. The tree was frozen at `frozen_since` (time.monotonic())."""

    def prepare(self, checkpoint: Checkpoint, manifest: bytes) -> None:
        """Have the tree built and held on the other host. The packs are stored here, the manifest is not."""

    def decide(self) -> None:
        """Record that the commit comes next: if the hold takes it, the tree ends."""

    def end(self) -> None:
        """Let the tree run on the other host: it has ended here. Raises nothing that would hide the dump's result."""


def make_checkpoint(
    target: DumpTarget,
    workspace: Workspace,
    waiting: StartedCriu | None,
    on_resumed: OnResumed,
    hand_over: HandOver | None,
) -> DumpResult:
    """Dump the tree and store its checkpoint, with the CRIU that is `waiting` if its command is what the tree needs."""
    with _planned(target, workspace) as dump:
        # It was started with guessed options: of no use if the tree needs others.
        is_tracked = dump.lineage is not None and dump.lineage.keeper is not None
        if waiting is not None and (is_tracked or waiting.command != dump.command(waiting.paths)):
            waiting.give_up()
            waiting = None
        finish: Callable[[PlannedDump, Workspace, StartedCriu | None], DumpResult]
        finish = partial(_dump_and_resume, on_resumed=on_resumed)
        if target.request.stop:
            finish = partial(_dump_and_stop, hand_over=hand_over)
        try:
            _begin(dump, workspace)
            result = finish(dump, workspace, waiting)
        except BaseMismatch as error:
            # Without a base CRIU copies all memory, which takes long.
            if dump.lineage is None or not target.request.allows_long_freeze:
                raise
            # Try again only once: without a base there is nothing to mismatch.
            dump.lineage.restart_full(error.reason)
            # Otherwise images that the next CRIU does not write again would be stored, too.
            remove_tree(workspace.images, "images")
            workspace.images.mkdir(mode=0o700)
            # A program that replaced itself has other files, and may have another name.
            dump = replace(dump, target=examine_again(dump.target))
            _begin(dump, workspace)
            result = finish(dump, workspace, None)
    if not target.request.stop:
        return replace(result, root_ended=target.root_has_ended)
    # The root waits for its parent to reap it, all others for init.
    root, *others = (process.identity for process in dump.target.observed.tree.processes)
    left = proc.wait_until_gone(others, _REAPED_BY_INIT_WITHIN_S)
    is_of_init = dump.target.observed.tree.root.ppid == 1
    within = _REAPED_BY_INIT_WITHIN_S if is_of_init else _REAPED_BY_PARENT_WITHIN_S
    return replace(result, unreaped=(*proc.wait_until_gone((root,), within), *left))


def plan_checkpoint(target: DumpTarget) -> DumpResult:
    """Plan a dump. Nothing is started or made. Raises StoreUnusable, and what `check_job` raises."""
    with _planned(target, None) as dump:
        result = _make_result(dump, dump.command(Paths(Path("IMAGES"), Path("WORK"))))
        predicted = dump.lineage.predict(target.context.repository, target.criu.path) if dump.lineage else None
        return replace(result, lineage=predicted)


@contextmanager
def _planned(target: DumpTarget, workspace: Workspace | None) -> Iterator[PlannedDump]:
    """Plan the dump of a target, for as long as the block runs. Without `workspace` nothing is started or copied."""
    last = None
    if workspace is not None or not is_blank(target.context.store):
        last = read_last_checkpoint(workspace.repository if workspace else target.context.repository(), target.job)
    # Check this before anything is copied: a refusal costs the tree nothing yet.
    shared, before = check_job(target, last), last.tracked_root if last is not None else None
    request, asked = target.request, target.request.pre_copy
    lineage = open_lineage(
        target.observed.tree.root,
        target.criu.path,
        wanted=request.wants_tracker,
        apart=target.plan.runs_apart,
        before=before,
        starts=workspace is not None,
    )
    with closing(lineage) if lineage is not None else nullcontext():
        rounds = PreCopyResult(()) if lineage is not None and asked is not None else None
        if lineage is not None and asked is not None and workspace is not None:
            target, rounds = pre_copy(target, lineage, asked, workspace)
        yield PlannedDump(target, lineage, rounds, shared, before)


def _make_result(
    dump: PlannedDump, command: tuple[str, ...], workspace: Workspace | None = None, warnings: tuple[Finding, ...] = ()
) -> DumpResult:
    target, lineage = dump.target, None
    if dump.lineage is not None and workspace is not None:
        lineage = dump.lineage.summary
        # With --stop CRIU writes them after it has ended the tree: a full disk costs these numbers, and no more.
        with suppress(OSError, IntegrityError):
            stats = read_dump_stats(workspace.stats.read_bytes())
            lineage = replace(lineage, written_pages=stats.pages_written, left_pages=stats.pages_skipped_parent)
    return DumpResult(
        job=target.job,
        pid=target.pid,
        plan=replace(target.plan, warnings=(*target.plan.warnings, *dump.warnings, *warnings)),
        command=command,
        criu=target.criu,
        stop=target.request.stop,
        lineage=lineage,
        pre_copy=dump.pre_copy,
    )


def _begin(dump: PlannedDump, workspace: Workspace) -> None:
    lineage, request = dump.lineage, dump.target.request
    if lineage is not None:
        has_rounds = lineage.keeper is not None and dump.pre_copy is not None and bool(dump.pre_copy.rounds)
        lineage.begin(workspace.repository, dump.target.criu.path, lambda: workspace.staging)
        # The rounds may have been lost since the estimate: --abort-over holds for the freeze, not for the estimate.
        if has_rounds and lineage.parent is None and not request.allows_long_freeze:
            raise PreflightRefused(
                f"the tree would be frozen for longer than estimated: the copied rounds can no longer be "
                f"used ({lineage.summary.why_full})",
                hint="try again, or leave out --abort-over",
            )


def _read_states(root: int) -> TaskStates:
    """Read what the kernel says of the tasks of a frozen tree, to compare with what CRIU saves."""
    return add_signal_owners(add_opened_files(read_task_states(root), root))


def _dump_and_resume(
    dump: PlannedDump, workspace: Workspace, waiting: StartedCriu | None, on_resumed: OnResumed
) -> DumpResult:
    """CRIU freezes the tree, dumps it and lets it run. Then the images are stored while the tree runs."""
    target = dump.target
    # Ask before the freeze: frozen processes cannot answer, and the freeze must be short.
    answers, unasked = ask(target.observed, everyone=False)
    details, began = read_details(dump, answers), time.monotonic()
    states: TaskStates | None = None

    def read_states(_: Hold) -> None:
        nonlocal states
        states = _read_states(target.pid)
        details.update(read_frozen_details(target))

    preparation = Preparation(workspace.repository, workspace.images)
    outcome = dump.run_held(workspace, waiting, preparation, read_states)
    target.check_root()
    frozen_ms = read_dump_stats(workspace.stats.read_bytes()).frozen_time / 1000
    # CRIU writes its statistics when the tree has just resumed.
    resumed = utc_datetime(workspace.stats.stat().st_mtime)
    target.check_entered(outcome.log)
    securebits = find_securebits(target.observed.tree, answers)
    # The checkpoint's time is the middle of the freeze.
    moment = resumed - timedelta(milliseconds=frozen_ms / 2)
    new = describe_checkpoint(dump, outcome.log, details, moment, frozen_ms, (outcome.ended - began) * 1000)
    rounds = dump.pre_copy
    if rounds is not None and rounds.max_freeze_ms is not None:
        rounds = replace(rounds, over_budget=frozen_ms > rounds.max_freeze_ms)
    result = replace(_make_result(dump, outcome.argv, workspace, unasked), frozen_ms=frozen_ms, pre_copy=rounds)
    alone = target.request.asynchronous
    with interrupts_allowed(), announced(workspace.repository.backend, new.job, new.created, new.run_id, alone=alone):
        on_resumed(replace(result, pending=True, root_ended=target.root_has_ended))
        try:
            # Storing takes longer than the freeze, and would use all cores.
            with cores_left_to(target.observed.tree.pids):
                return replace(
                    result, checkpoint=commit_checkpoint(dump, workspace, new, states, securebits, preparation)
                )
        except OSError as error:
            raise to_dump_error(error, "the dump", target.context) from error


def _dump_and_stop(
    dump: PlannedDump, workspace: Workspace, waiting: StartedCriu | None, hand_over: HandOver | None
) -> DumpResult:
    """CRIU holds the tree frozen until its checkpoint is committed, and only then ends it."""
    target, request = dump.target, dump.target.request
    answers, unasked = ask(target.observed, everyone=True)
    parent = dump.parent.checkpoint if dump.parent is not None and not request.searches else None
    preparation, began = Preparation(workspace.repository, workspace.images, parent), time.monotonic()
    made: list[Checkpoint] = []
    frozen: list[float] = []
    rehearsals: list[RehearsalResult] = []
    if request.rehearse:
        # The steps of a restore take long to load: not in the freeze.
        from crckpt.ops.restore.rehearse import rehearse_held

    def commit(hold: Hold) -> None:
        # An interruption during an import would leave a lock taken, and the thread that loads waiting for ever.
        with interrupts_deferred():
            preparation.load()
        # CRIU writes its statistics after the hold only.
        frozen.append(find_freeze(workspace.log, began))
        log = read_log(workspace.log)
        target.check_entered(log)
        # Read this from the frozen tree: nothing changes any more.
        details = read_details(dump, answers, is_frozen=True)
        step("hold.read", workspace.staging)
        # Read these last: that a task has a state shows that it was there until now. One that is killed is not frozen.
        states = _read_states(target.pid)
        securebits = find_securebits(target.observed.tree, answers)
        if hand_over is not None:
            hand_over.begin(target.observed.tree, frozen[0])
        frozen_ms, spent_ms = ((time.monotonic() - since) * 1000 for since in (frozen[0], began))
        new = describe_checkpoint(dump, log, details, datetime.now(UTC), frozen_ms, spent_ms)

        def check(checkpoint: Checkpoint, manifest: bytes) -> None:
            if request.rehearse:
                rehearsals.append(rehearse_held(request.target, target.context, workspace.repository, checkpoint))
            # If CRIU has given up waiting, the tree runs, and this is no checkpoint of its end.
            hold.check()
            if hand_over is not None:
                hand_over.prepare(checkpoint, manifest)

        at_least = hand_over.at_least if hand_over is not None else 0
        checkpoint = commit_checkpoint(
            dump, workspace, new, states, securebits, preparation, at_least=at_least, before=check
        )
        made.append(checkpoint)
        if hand_over is not None:
            hand_over.decide()

    outcome = dump.run_held(workspace, waiting, preparation, commit)
    if hand_over is not None:
        hand_over.end()
    return replace(
        _make_result(dump, outcome.argv, workspace, unasked),
        checkpoint=made[0],
        frozen_ms=(outcome.ended - frozen[0]) * 1000,
        rehearsal=rehearsals[0] if rehearsals else None,
    )


def commit_checkpoint(
    dump: PlannedDump,
    workspace: Workspace,
    new: NewCheckpoint,
    states: TaskStates | None,
    securebits: Mapping[int, int],
    preparation: Preparation,
    *,
    at_least: int = 0,
    before: BeforeWrite | None = None,
) -> Checkpoint:
    """Check CRIU's images, store the checkpoint, report it to the tree's keeper, and tag it.

    It exists once its manifest is written. `states` are what the kernel says of the frozen tasks, None if that is not
    known, `securebits` those that processes had. `preparation` has run for the images; `at_least` and `before` are for
    `ingest`.
    """
    target, repository, images = dump.target, workspace.repository, workspace.images
    if target.plan.as_user is not None:
        # CRIU wrote the images as the tree's user, and the store takes only our own files.
        for image in images.iterdir():
            os.chown(image, os.geteuid(), os.getegid(), follow_symlinks=False)
    # CRIU dumps such a tree, but cannot restore it: with --stop the program would be lost.
    if any(images.glob("userns-*.img")):
        raise DumpFailed(
            "the dump failed: a process changed its user namespace during the dump",
            hint="start it without a user namespace (unshare --user), or checkpoint it with its container engine",
        )
    # A newer CRIU may write another format: store nothing that could not be read again.
    read_inventory((images / "inventory.img").read_bytes())
    if states is not None:
        check_reported(images, states, securebits)
    if dump.parent:
        dump.parent.link_pages(images)
    checkpoint = ingest(
        repository,
        images,
        new,
        compress=target.context.compress,
        searches=target.request.searches,
        copies=target.request.copies,
        progress=target.context.progress,
        at_least=at_least,
        before=before,
        preparation=preparation,
    )
    cache_details(repository, checkpoint, new.details, workspace.work)
    # Report it only now: until the checkpoint is durable, the next dump must count from the one before.
    if dump.lineage is not None:
        dump.lineage.commit(CheckpointBase(checkpoint.id))
    if target.request.tag is not None:
        repository.tag(checkpoint.id, target.request.tag)
    return checkpoint
