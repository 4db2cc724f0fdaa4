"""Rehearse a restore: restore a checkpoint in isolation, let it run for a while, and end it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding, cause, mebibytes, preflight_refusal
from crckpt.criu.find import Criu
from crckpt.errors import NOTHING_LEFT, CrckptError, DumpFailed, Interrupted, RehearsalFailed, RestoreFailed
from crckpt.host.namespaces import memory_limit
from crckpt.images.tree import ImageTree
from crckpt.ops.context import Context, ignore_progress
from crckpt.ops.failures import limited_waits_of_restore, to_crckpt_error
from crckpt.ops.inspect.images import read_files_in_flight, read_image_tree, read_pipes
from crckpt.ops.restore.attributes import plan_attributes
from crckpt.ops.restore.images import (
    ImageEdits,
    ImageStreams,
    find_new_paths,
    images_with_parent_signal,
    write_images,
)
from crckpt.ops.restore.isolated_run import (
    NO_MEMORY,
    PROBE_S,
    EndedProcess,
    IsolatedRestore,
    IsolatedRun,
    ProbeResult,
    reachable_sockets,
    run_isolated,
)
from crckpt.ops.restore.launch import find_work_place, opened_work_directory
from crckpt.ops.restore.open_files import RecordedFiles
from crckpt.ops.restore.request import RehearsalRequest, RestoreRequest
from crckpt.ops.restore.survey import plan_restore, survey
from crckpt.preflight.attribute_record import read_attribute_record
from crckpt.preflight.restore.checks import RestoreVerdict, judge_restore
from crckpt.preflight.restore.files import find_unsized
from crckpt.preflight.restore.rehearsal import find_rehearsal_blockers, rehearsal_warnings, writable_bytes
from crckpt.store import Checkpoint, Repository, open_reader
from crckpt.store.read.details import read_details

if TYPE_CHECKING:
    from crckpt.store.format.index import StoredFile

# For CRIU, the init, the probe, and what the kernel charges to the group: page tables, pipes.
_SPARE: Final = 512 << 20
# A tree that is dumped stays frozen for so long. What a restore breaks in a program mostly ends it at its first steps.
_SECONDS_HELD: Final = 0.5
_FAILED: Final = "the rehearsal failed: "


class RehearsalResult(Struct, frozen=True):
    """The result of a rehearsal whose tree started.

    - `failures`: why it failed all the same, in words
    - `memory_limit`: in bytes; None if this host gives no limit
    - `closed`: how many TCP connections were closed
    - `sockets`: paths of the host's sockets that the tree could reach
    - `unwritable`: mount points that were read-only here, but are not in a restore
    """

    checkpoint: Checkpoint
    criu: Criu
    warnings: tuple[Finding, ...]
    failures: tuple[str, ...]
    restore_ms: float
    ran_s: float
    ended: tuple[EndedProcess, ...]
    probe: ProbeResult | None
    memory_limit: int | None
    closed: int
    sockets: tuple[str, ...]
    unwritable: tuple[str, ...]


def rehearse(request: RehearsalRequest, context: Context) -> RehearsalResult:
    """Restore `request.ref` in throwaway namespaces; nothing of it is left when this returns or raises.

    Raises NoSuchCheckpoint, IntegrityError, PreflightRefused, HostCannot, and RehearsalFailed if the tree does not
    start.
    """
    repository = context.repository()
    with repository.shared():
        checkpoint = repository.get(repository.resolve(request.ref))
        try:
            return rehearse_checkpoint(request, context, repository, checkpoint)
        except RestoreFailed as error:
            # Checks in the hold, which a restore has too, raise it.
            raise RehearsalFailed(
                error.message, hint=error.hint, causes=error.causes, causes_said=error.causes_said
            ) from error
        except (Interrupted, OSError) as error:
            ours = to_crckpt_error(error, RehearsalFailed, "the rehearsal")
            raise ours.reword(state=NOTHING_LEFT) from error


def rehearse_held(target: str, context: Context, repository: Repository, checkpoint: Checkpoint) -> RehearsalResult:
    """Rehearse the tree that a dump of `target` holds frozen: its packs are stored, its manifest is not.

    Raises DumpFailed if the tree does not start in isolation or does not run on there, Interrupted.
    """
    # No checkpoint is made that could be named.
    request = RehearsalRequest(checkpoint.id, _SECONDS_HELD, is_stored=False)
    try:
        result = rehearse_checkpoint(request, replace(context, progress=ignore_progress), repository, checkpoint)
    except (CrckptError, OSError) as error:
        ours = to_crckpt_error(error, RehearsalFailed, "the rehearsal")
        said = ours.message if isinstance(ours, RehearsalFailed) else f"{_FAILED}{ours.message}"
        raise DumpFailed(said, hint=ours.hint, causes=ours.causes, causes_said=ours.causes_said) from error
    if result.failures:
        closed = "" if not result.closed else "; its TCP connections were closed, because the other side is not there"
        raise DumpFailed(
            f"{_FAILED}{result.failures[0]}{closed}",
            hint=f"look closer at a checkpoint of the tree that runs on: crckpt dump "
            f"{shlex.quote(target)} {checkpoint.job} && crckpt rehearse {checkpoint.job}",
            causes=result.failures,
            causes_said=1,
        )
    return result


def rehearse_checkpoint(
    request: RehearsalRequest, context: Context, repository: Repository, checkpoint: Checkpoint
) -> RehearsalResult:
    """Rehearse a checkpoint whose packs are in the store; its manifest need not be there.

    Raises what `rehearse` raises, as it happens: also RestoreFailed, Interrupted and OSError.
    """
    criu = context.criu()
    with ExitStack() as stack:
        reading = stack.enter_context(open_reader(repository, checkpoint))
        tree = read_image_tree(repository, checkpoint)
        stack.enter_context(limited_waits_of_restore(tree.users))
        without_signal, unsized = images_with_parent_signal(tree), find_unsized(tree, "keep")
        edits = ImageEdits(without_signal, None, find_new_paths(tree), unsized, tree.groups)
        streams = None
        if not tree.is_read_by_position:
            streams = ImageStreams(reading, tree, context.progress, edits)
            streams.begin()
        details = read_details(repository, checkpoint)
        verdict, limit = _judge(request, context, repository, checkpoint, criu, tree, reading.files, details)
        # The real path: it is bound at the same place in the new root directory.
        work = stack.enter_context(opened_work_directory(context, repository)).resolve()
        group = stack.enter_context(memory_limit.limited(limit))
        directory = write_images(repository, checkpoint, work, context.progress, edits) if streams is None else None
        # A rehearsal changes nothing, so the tree may be less protected; crckpt reports that.
        attributes = plan_attributes(read_attribute_record(details), tree, allow_weaker=True, is_isolated=True)
        attributes.enter_session()
        isolated = IsolatedRestore(
            request=request,
            checkpoint=checkpoint,
            criu=criu,
            tree=tree,
            verdict=verdict,
            streams=streams,
            directory=directory,
            work=work,
            group=group,
            attributes=attributes,
            pipes=read_pipes(repository, checkpoint, verdict.two_way_pipes),
            # On an overlay the files are on another file system.
            recorded=RecordedFiles.of_details(
                details, by_inode=True, in_flight=read_files_in_flight(repository, checkpoint)
            ),
            rights=tree.root.core.rights,
        )
        run = run_isolated(isolated, limit)
        out_of_memory = group is not None and group.ran_out
    return RehearsalResult(
        checkpoint=checkpoint,
        criu=criu,
        warnings=(*rehearsal_warnings(verdict), *attributes.verdict.weaker, *attributes.verdict.lost, *run.lost),
        failures=tuple(_failures(tree, run, out_of_memory=out_of_memory)),
        restore_ms=run.restore_ms,
        ran_s=run.ran_s,
        ended=run.ended,
        probe=run.probe,
        memory_limit=None if group is None else limit,
        closed=len(tree.established),
        sockets=reachable_sockets(tree),
        unwritable=run.unwritable,
    )


def _judge(
    request: RehearsalRequest,
    context: Context,
    repository: Repository,
    checkpoint: Checkpoint,
    criu: Criu,
    tree: ImageTree,
    files: tuple[StoredFile, ...],
    details: dict[str, Any],
) -> tuple[RestoreVerdict, int]:
    """Judge the rehearsal; return also its limit of memory in bytes.

    It is enough for the tree to double its memory, and for the files that it may write to.
    """
    # Files are cut back in the overlay only.
    choices = RestoreRequest(request.ref, detach=True, tcp="close", grown="rewind", new_pid_namespace=True)
    planned = plan_restore(choices, checkpoint, tree, details, criu, is_rehearsal=True)
    # In namespaces of its own all ports and terminals are free. Files on an overlay are other files, without locks
    # and writers.
    unused = {"refused": {}, "locks": {}, "writers": {}, "terminals": frozenset[int]()}
    host = replace(survey(planned, files, find_work_place(context, repository)), **unused)
    verdict = judge_restore(planned, host)
    blockers = (*find_rehearsal_blockers(tree, needs_terminal=verdict.needs_terminal), *verdict.blockers)
    if blockers:
        raise preflight_refusal(tuple(blocker.fill(**request.values) for blocker in blockers))
    pages, written, free = host.resources.memory, writable_bytes(tree, host.files), host.resources.free_memory
    if pages + written > free:
        sizes = {"needed": pages + written, "memory": pages, "files": written, "free": free}
        words = {name: mebibytes(size) for name, size in sizes.items()}
        raise preflight_refusal((cause("memory-rehearsed").finding(**words),))
    return verdict, min(2 * (pages + written) + _SPARE, free)


def _failures(tree: ImageTree, run: IsolatedRun, *, out_of_memory: bool) -> Iterator[str]:
    for ended in run.ended:
        if ended.status is not None and ended.status < 0:
            yield f"process {ended.pid} ({ended.comm}) was ended by signal {-ended.status}"
        elif ended.pid == tree.root.pid and ended.status:
            yield f"process {ended.pid} ({ended.comm}), the root of the tree, ended with status {ended.status}"
    if out_of_memory:
        yield NO_MEMORY
    if run.probe is not None and run.probe.status is None:
        yield f"the probe did not end within {PROBE_S:g} s"
    elif run.probe is not None and run.probe.status:
        yield f"the probe ended with status {run.probe.status}"
