"""Restore a checkpoint, in the foreground (crckpt is the parent) or detached."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from crckpt.causes import Finding, Refusal, cause, preflight_refusal
from crckpt.criu.command import Paths
from crckpt.criu.hold import AfterCommit
from crckpt.errors import (
    NOTHING_LEFT,
    CrckptError,
    HostCannot,
    IntegrityError,
    Interrupted,
    PreflightRefused,
    RestoreFailed,
    UsageError,
)
from crckpt.helper.terminal.client import TerminalHolder
from crckpt.host import proc
from crckpt.host.disk.files import name_with_ending
from crckpt.host.disk.rewind import linked_again, restored_on_failure
from crckpt.host.network import packet_filter
from crckpt.host.process import orphans
from crckpt.host.process.signals import (
    defer_stop,
    forward_signals,
    ignore_interrupts,
    interrupts_allowed,
    interrupts_deferred,
)
from crckpt.host.process.terminals import lower_numbers_held, terminal_of_shell
from crckpt.images.tree import ImageTree
from crckpt.ops.context import Context
from crckpt.ops.failures import criu_failure, limited_waits_of_restore, to_crckpt_error
from crckpt.ops.inspect.images import read_files_in_flight, read_image_tree
from crckpt.ops.last_checkpoint import describe_place, read_with_details
from crckpt.ops.lazy.client import Filler
from crckpt.ops.restore.attempt import Announce, BeforeRun, RestoreAttempt, RestoreResult, SkippedCheckpoint
from crckpt.ops.restore.attributes import AttributeRestore, plan_attributes, prepare_tree
from crckpt.ops.restore.foreground import announce_on_terminal, start_job
from crckpt.ops.restore.images import ImageStreams, LateFill
from crckpt.ops.restore.launch import LaunchedCriu, launched_criu, write_holders
from crckpt.ops.restore.moved_jobs import forget_move, record_running, refuse_moved, restoring
from crckpt.ops.restore.open_files import RecordedFiles
from crckpt.ops.restore.outside_ends import OutsideEnds, commit_terminal, give_terminal, opened_outside_ends
from crckpt.ops.restore.request import RestoreRequest
from crckpt.ops.restore.survey import judge_attempt
from crckpt.preflight.attribute_record import read_attribute_record
from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.preflight.restore.descriptors import find_needed_numbers, needs_terminal
from crckpt.preflight.restore.tasks import find_needed_ids
from crckpt.store import Checkpoint, Repository, open_reader
from crckpt.store.damage import FIND_REPAIR, DamagedCheckpoint
from crckpt.store.read.details import read_details

if TYPE_CHECKING:
    from crckpt.criu.engine import CriuResult
    from crckpt.store.read.frames import UnpackedFrames

_REPAIR = "find what can be repaired: crckpt verify --repair"


def restore(
    request: RestoreRequest,
    context: Context,
    announce: Announce = lambda _: None,
    before_run: BeforeRun | None = None,
    unpacked: UnpackedFrames | None = None,
    filler: Filler | None = None,
    repository: Repository | None = None,
) -> RestoreResult:
    """Restore the checkpoint that `request.ref` names; with `or_older`, the newest one of its job that restores.

    In the foreground, `announce` is called with the result before the tree runs. `before_run` is of a move, which has
    a detached restore as its last step here: no other restore of the job is possible meanwhile. `unpacked` is
    memory of the checkpoint that need not be read. With `filler` the tree runs before its memory is filled.
    `repository` is the store if it is not that of the context.

    After a failure nothing is left behind, and the same restore can be tried again. Raises NoSuchCheckpoint,
    IntegrityError, PreflightRefused, HostCannot, RestoreFailed, and StoreLocked if another restore of the job is in
    progress.
    """
    if request.or_older and not request.preflight:
        raise UsageError("--or-older cannot be combined with --no-preflight", hint="leave one of them out")
    repository = repository or context.repository()
    with ExitStack() as stack:
        stack.enter_context(repository.shared())
        # A damaged manifest may be the job's newest: without --or-older nothing older is taken in its place.
        newest = repository.get(repository.resolve(request.ref, despite_damage=request.or_older))
        if before_run is None:
            # Says more than that the job is locked.
            refuse_moved(repository, newest, request)
        if not request.dry_run:
            # Two restores at once would find the same PIDs free, and cut back the same files. Others only wait for a
            # move to end, or keep it from beginning.
            alone = not request.new_pid_namespace or request.grown == "rewind"
            stack.enter_context(restoring(repository, newest.job, alone=alone))
            if before_run is None:
                refuse_moved(repository, newest, request)
        running: tuple[Finding, ...] = ()
        if before_run is None and request.preflight:
            # As it was dumped, or as it was restored, wherever. The restore says what is damaged.
            root = read_with_details(repository, newest).find_running_root()
            place = () if root is None else (describe_place(root),)
            running = tuple(cause("job-runs").finding(job=newest.job, place=where) for where in place)
        # In other PIDs not all that is in use shows that it is the program itself: then that is named, too.
        if running and not request.new_pid_namespace:
            raise preflight_refusal(running, is_in_use=True)
        attempt = RestoreAttempt(
            request,
            context,
            repository,
            newest,
            context.criu(),
            announce,
            before_run=before_run,
            unpacked=unpacked,
            filler=filler,
            running=running,
        )
        return _restore_newest(attempt) if request.or_older else _restore_checkpoint(attempt)


def check_restore(
    request: RestoreRequest, context: Context, checkpoint: Checkpoint, repository: Repository | None = None
) -> RestoreResult:
    """Check whether a checkpoint whose packs are in the store could be restored; its manifest need not be there.

    Raises what `restore` raises.
    """
    repository = repository or context.repository()
    with repository.shared():
        wanted = replace(request, dry_run=True)
        return _restore_checkpoint(RestoreAttempt(wanted, context, repository, checkpoint, context.criu()))


def _restore_newest(first: RestoreAttempt) -> RestoreResult:
    """Restore the checkpoint of the attempt, or the next older one that can be restored."""
    repository, job = first.repository, first.checkpoint.job
    skipped = [SkippedCheckpoint(bad.id, bad.why) for bad in repository.unreadable(job)]
    failures: list[CrckptError] = []

    def add_skipped(restored: RestoreResult) -> RestoreResult:
        return replace(restored, skipped=tuple(skipped))

    for checkpoint in repository.back_from(first.checkpoint):
        attempt = replace(first, checkpoint=checkpoint, announce=lambda result: first.announce(add_skipped(result)))
        try:
            return add_skipped(_restore_checkpoint(attempt))
        except (IntegrityError, PreflightRefused, RestoreFailed) as error:
            if isinstance(error, PreflightRefused) and error.is_in_use:
                # A PID, a port or a lock is in use: maybe the program itself runs, so do not start an older one.
                causes = (*map(str, skipped), *error.causes)
                raise PreflightRefused(error.message, hint=error.hint, causes=causes, is_in_use=True) from error
            failures.append(error)
            skipped.append(SkippedCheckpoint(checkpoint.id, error.message, isinstance(error, DamagedCheckpoint)))
    if len(failures) == 1:
        raise failures[0]
    raise RestoreFailed(
        f"none of the {len(failures)} checkpoints of {job} can be restored",
        hint=_REPAIR if isinstance(failures[0], IntegrityError) else failures[0].hint,
        causes=tuple(map(str, skipped[-len(failures) :])),
    )


def _restore_checkpoint(attempt: RestoreAttempt) -> RestoreResult:
    try:
        return attempt.name_checkpoint(_restore(attempt))
    except (Interrupted, OSError) as error:
        ours = to_crckpt_error(error, RestoreFailed, "the restore")
        raise ours.reword(state=NOTHING_LEFT) from error
    # Their remedies can be typed as they are.
    except Refusal as error:
        raise error.fill(**attempt.values) from error
    except DamagedCheckpoint as error:
        if error.has_own_hint:
            raise
        raise error.reword(hint=f"{FIND_REPAIR}{attempt.values['older']}") from error


def _restore(attempt: RestoreAttempt) -> RestoreResult:
    request, repository, checkpoint = attempt.request, attempt.repository, attempt.checkpoint
    with ExitStack() as stack:
        early = stack.enter_context(ExitStack())  # closed on its own if this CRIU turns out to be useless
        criu = None
        if not request.dry_run and not request.new_pid_namespace and request.tty == "ours":
            # CRIU starts slowly: check everything while it does. As if the tree needed nothing from outside: most do
            # not.
            criu = early.enter_context(launched_criu(attempt, OutsideEnds(), None))
        reading = stack.enter_context(open_reader(repository, checkpoint, attempt.unpacked))
        tree = read_image_tree(repository, checkpoint)
        attempt = replace(attempt, has_new_terminal=request.tty == "new" and needs_terminal(tree))
        stack.enter_context(limited_waits_of_restore(tree.users))
        streams = None
        if not request.dry_run and not tree.is_read_by_position:
            late = LateFill(attempt.filler, attempt.context.store, checkpoint.id) if attempt.filler else None
            streams = ImageStreams(reading, tree, attempt.context.progress, attempt.find_edits(tree), late)
            streams.begin()  # other threads unpack while this one checks
        if criu is not None and criu.run.pid in find_needed_ids(tree):
            # By chance it has a PID that the tree needs; the next CRIU has another.
            early.close()
            criu = None
        details = read_details(repository, checkpoint)
        attributes = plan_attributes(read_attribute_record(details), tree, allow_weaker=request.allow_weaker)
        verdict = judge_attempt(attempt, tree, reading, details, attributes)
        if request.dry_run:
            paths = Paths(Path("IMAGES"), Path("WORK"))
            command = attempt.command(paths, (), stream=not tree.is_read_by_position)
            return RestoreResult(checkpoint, verdict, command, attempt.criu)
        # Before anything is started that starts CRIU, or becomes a parent of the tree: the holder of a new terminal, an
        # init. A CRIU that was started early is not used then.
        attributes.enter_session()
        # Before CRIU reads the images.
        stack.enter_context(lower_numbers_held(find_needed_numbers(tree)))
        outside = stack.enter_context(opened_outside_ends(attempt, tree, verdict))
        if criu is None or outside != OutsideEnds() or tree.is_read_by_position or attributes.needs_session:
            # CRIU must know at its start what it gets from outside, and whether its images are files.
            early.close()
            criu = stack.enter_context(launched_criu(attempt, outside, tree, attributes.verdict.moves))
        else:
            write_holders(criu.holders, tree, attributes.verdict.moves)
            criu.last_calls.write(tree)
        is_of_this_host = checkpoint.host.hostname == os.uname().nodename
        in_flight = read_files_in_flight(repository, checkpoint)
        recorded = RecordedFiles.of_details(details, is_of_this_host=is_of_this_host, in_flight=in_flight)
        for link in verdict.links:
            stack.enter_context(linked_again(Path(link.path), link.name, link.inode, link.owner))
        result = RestoreResult(
            checkpoint,
            stack.enter_context(_files_rewound(checkpoint, verdict)),
            criu.command,
            attempt.criu,
            inner_pid=tree.root.pid if criu.new else None,
            holder=outside.holder,
            copiers=criu.copiers,
        )
        if attempt.tcp == "keep" and checkpoint.run_id and not tree.is_apart("net"):
            stack.enter_context(packet_filter.connections_locked(checkpoint.run_id, tree.inner_connections))
        return _build(attempt, tree, result, criu, streams, attributes, recorded)


@contextmanager
def _files_rewound(checkpoint: Checkpoint, verdict: RestoreVerdict) -> Iterator[RestoreVerdict]:
    """Cut files back (--grown rewind); give the verdict with warnings that name the files with what was cut off."""
    kept: dict[str, Path] = {}
    with ExitStack() as stack:
        for at, size in verdict.rewinds:
            path = Path(at)
            name = name_with_ending(path.name, f".after-{checkpoint.id[:12]}")
            # A restore that fails leaves the files as they were. Once the tree runs, its files are its own.
            kept[at] = stack.enter_context(restored_on_failure(path, size, name))
        cut = "file-rewound"
        warnings = (each.fill(kept=kept[each.get("path")]) if each.key == cut else each for each in verdict.warnings)
        yield replace(verdict, warnings=tuple(warnings))


def _build(
    attempt: RestoreAttempt,
    tree: ImageTree,
    result: RestoreResult,
    criu: LaunchedCriu,
    streams: ImageStreams | None,
    attributes: AttributeRestore,
    recorded: RecordedFiles,
) -> RestoreResult:
    """Let CRIU build the tree; in the hold, fill and check it and set its attributes; then let it run."""
    detach, root, holder = attempt.request.detach, tree.root.pid, result.holder
    is_ours = result.verdict.needs_terminal and holder is None
    child = criu.new.parent if criu.new and holder is None else root
    modes: list[Any] = []

    def add(losses: Iterable[Finding]) -> None:
        nonlocal result
        verdict = result.verdict
        result = replace(result, verdict=replace(verdict, warnings=(*verdict.warnings, *losses)))

    def in_hold() -> AfterCommit | None:
        nonlocal result
        # If the store could not be read, a stream has ended early: what CRIU made of it must not run.
        criu.streamer.check()
        criu.last_calls.check_loaded()
        init = criu.find_init(tree)
        add(prepare_tree(attributes, init, streams, recorded))
        add(give_terminal(holder, tree, init) if holder is not None else ())
        outer = proc.outer_pids((root,), init).get(root, root)
        # The hold of a move: this waits until the tree may run, and raises if it must not.
        after_commit = attempt.before_run(outer, criu.run.pid) if attempt.before_run is not None else None
        if attempt.filler is not None:
            # Only now, as it looks for the pages meanwhile. If it has ended, the tree has ended, too.
            attempt.filler.check()
        # Of a new PID namespace, too.
        helpers = (criu.new.init, criu.new.parent) if criu.new else ()
        helpers = (*helpers, *((holder.pid,) if holder else ()), *(() if detach else (os.getpid(),)))
        record_running(attempt.repository, attempt.checkpoint, outer, helpers)
        result = replace(result, pid=outer, restore_ms=(time.monotonic() - criu.run.started) * 1000)
        if not detach:
            # Now: the program may write to this terminal as soon as it runs.
            modes.extend(announce_on_terminal(lambda: attempt.announce(attempt.name_checkpoint(result)), terminal))
        return after_commit

    with interrupts_deferred(), terminal_of_shell(attempt.request.terminal if is_ours else None) as terminal:
        if streams is not None:
            criu.streamer.serve(streams)
        # A new PID namespace ends with its init, and all its processes with it.
        with orphans.ended_on_failure(frozenset() if criu.new else find_needed_ids(tree)):
            ran = criu.run.follow(criu.hold, in_hold)
            if not ran.ok:
                with interrupts_allowed():
                    raise _explain_failure(ran, criu, tree, attempt)
            criu.last_calls.check_done()
            outer = result.pid or root
            add(_check_root(root, outer, criu.init, holder, attempt) if detach else ())
        # The tree runs: nothing that fails from here on may end it.
        _note_restored(attempt)
        result = replace(result, restore_ms=(ran.ended - criu.run.started) * 1000)
        add(commit_terminal(holder, attempt, tree, outer) if holder is not None else ())
        if detach:
            ignore_interrupts()
            return result
        to = outer if holder is not None else criu.init or root
        forward_signals(to, on_our_terminal=is_ours and tree.root.sid != root)
        if holder is None:
            defer_stop()
        return replace(result, job=start_job(tree, child, criu.init, terminal, modes))


def _explain_failure(ran: CriuResult, criu: LaunchedCriu, tree: ImageTree, attempt: RestoreAttempt) -> CrckptError:
    """Return the error for a CRIU that failed. Raises IntegrityError if it failed because the store is damaged."""
    # Only for failures, and slow to load.
    from crckpt.ops.failure_locations import name_place_in_images

    criu.streamer.check()
    place = partial(name_place_in_images, tree)
    return criu_failure(ran, RestoreFailed, "the restore", place, NOTHING_LEFT, values=attempt.values)


def _note_restored(attempt: RestoreAttempt) -> None:
    """Note in the store, and in the network, that the tree runs here. Failures do not matter: it is already running."""
    checkpoint = attempt.checkpoint
    # CRIU has made new network namespaces for the tree, and left its lock in the named ones. `crckpt rm` tries again.
    if checkpoint.stopped and checkpoint.run_id and checkpoint.options.network_lock == "nftables":
        for place in packet_filter.find_named_networks():
            with suppress(HostCannot):
                packet_filter.lift_lock(checkpoint.run_id, place)
    # A program that was moved to another host runs here again.
    if attempt.request.despite_move:
        forget_move(attempt.repository, checkpoint)
    # `crckpt rm` asks before the only copy of a tree that its dump has ended is gone.
    if checkpoint.stopped:
        # Of a store that cannot be written, nothing can be removed either.
        with suppress(CrckptError, OSError):
            attempt.repository.mark_restored(checkpoint.id)


def _check_root(
    root: int, outer: int, init: int | None, holder: TerminalHolder | None, attempt: RestoreAttempt
) -> Iterator[Finding]:
    """Yield a warning if the root has ended well already. Raises RestoreFailed if it failed.

    In the foreground its own status says so.
    """
    ending = holder.find_ending(root, outer) if holder is not None else orphans.find_ending(init or root)
    if ending is None:
        return
    if ending.code == 0:
        yield cause("root-ended").finding(pid=str(root))
        return
    raise RestoreFailed(
        f"the root of the restored tree, PID {root}, ended at once{ending.clause}",
        state=NOTHING_LEFT,
        hint=f"run it without --detach to see its output: crckpt restore {attempt.name}",
    )
