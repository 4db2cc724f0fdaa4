"""Rehearse a restore: restore a checkpoint in throwaway namespaces, let it run for a while, probe it, and end it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding, cause, mebibytes, preflight_refusal
from crckpt.criu.command import Paths, restore_command
from crckpt.criu.engine import CriuResult, run_criu
from crckpt.criu.find import Criu
from crckpt.criu.hold import holds_at
from crckpt.criu.streamer import Streamer, serving
from crckpt.errors import NOTHING_LEFT, CrckptError, DumpFailed, Interrupted, RehearsalFailed, RestoreFailed
from crckpt.helper.pid_namespace.client import REHEARSAL_KINDS, Throwaway, throwaway
from crckpt.host.disk.log_excerpt import read_file_ends
from crckpt.host.namespaces import memory_limit, run_as_tree
from crckpt.host.namespaces.isolation import SeclusionPlan
from crckpt.host.process.pidfd import ExitWatch, watched_exits
from crckpt.host.process.terminals import lower_numbers_held
from crckpt.images.core import ZOMBIE
from crckpt.images.other_files import PipeContent
from crckpt.images.sockets import UnixSocket
from crckpt.images.tree import ImageTree
from crckpt.ops.context import Context, ignore_progress, nsenter_words, words_without_groups
from crckpt.ops.failure_locations import name_place_in_images
from crckpt.ops.failures import criu_failure, limited_waits_of_restore, to_crckpt_error
from crckpt.ops.inspect.images import read_files_in_flight, read_image_tree, read_pipes
from crckpt.ops.restore.attempt import HOLDERS
from crckpt.ops.restore.attributes import AttributeRestore, plan_attributes, prepare_tree
from crckpt.ops.restore.images import ImageStreams, plan_edits, write_images
from crckpt.ops.restore.last_calls import LastCalls
from crckpt.ops.restore.launch import create_holders, find_work_place, opened_work_directory, write_holders
from crckpt.ops.restore.open_files import RecordedFiles
from crckpt.ops.restore.outside_ends import OutsideEnds, inherited_ends
from crckpt.ops.restore.request import RehearsalRequest, RestoreRequest
from crckpt.ops.restore.survey import plan_restore, survey
from crckpt.preflight.attribute_record import read_attribute_record
from crckpt.preflight.restore.checks import RestoreVerdict, judge_restore
from crckpt.preflight.restore.descriptors import find_needed_numbers
from crckpt.preflight.restore.host import PlannedRestore
from crckpt.preflight.restore.rehearsal import (
    find_needed_addresses,
    find_rehearsal_blockers,
    rehearsal_warnings,
    writable_bytes,
)
from crckpt.store import Checkpoint, Repository, open_reader
from crckpt.store.read.details import read_details
from crckpt.tracking.preload.library import restore_words

if TYPE_CHECKING:
    from crckpt.store.format.index import StoredFile

# Seconds: a probe that takes longer has failed.
_PROBE_S: Final = 60.0
# Characters of the probe's output that are shown.
_MOST_OUTPUT: Final = 4000
# For CRIU, the init, the probe, and what the kernel charges to the group: page tables, pipes.
_SPARE: Final = 512 << 20
# A tree that is dumped stays frozen for so long. What a restore breaks in a program mostly ends it at its first steps.
_SECONDS_HELD: Final = 0.5
_FAILED: Final = "the rehearsal failed: "
_NO_MEMORY: Final = "the tree needs more memory than a rehearsal can use"


class EndedProcess(Struct, frozen=True):
    """A process that ended before the rehearsal did. `status` is its exit status or minus the signal, if known."""

    pid: int
    comm: str
    status: int | None


class ProbeResult(Struct, frozen=True):
    """The result of the probe. `status` is its exit status or minus the signal; None if it took too long."""

    command: tuple[str, ...]
    status: int | None
    output: str


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

    Raises DumpFailed if the tree does not start in isolation or does not keep running there, Interrupted.
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
            hint=f"look closer at a checkpoint of the running tree: crckpt dump "
            f"{shlex.quote(target)} {checkpoint.job} && crckpt rehearse {checkpoint.job}",
            causes=result.failures,
            causes_said=1,
        )
    return result


class _IsolatedRestore(Struct, frozen=True):
    """All that is needed to restore one checkpoint in isolation.

    `work` is a private directory, the only one that is written to. CRIU gets its images from `streams`, or, if that is
    None, from `directory`. `group` limits the memory to `limit` bytes, if there can be such a group.
    """

    request: RehearsalRequest
    checkpoint: Checkpoint
    criu: Criu
    tree: ImageTree
    verdict: RestoreVerdict
    streams: ImageStreams | None
    directory: Path | None
    work: Path
    group: memory_limit.MemoryGroup | None
    limit: int
    attributes: AttributeRestore
    pipes: tuple[PipeContent, ...]
    recorded: RecordedFiles


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
        edits = plan_edits(tree, "keep")
        streams = None
        if not tree.is_read_by_position:
            streams = ImageStreams(reading, tree, context.progress, edits)
            streams.begin()
        details = read_details(repository, checkpoint)
        # Files are cut back in the overlay only.
        choices = RestoreRequest(request.ref, detach=True, tcp="close", grown="rewind", new_pid_namespace=True)
        planned = plan_restore(choices, checkpoint, tree, details, criu, reading, is_rehearsal=True)
        verdict, limit = _judge(planned, reading.files, find_work_place(context, repository), request.values)
        # The real path: it is bound at the same place in the new root directory.
        work = stack.enter_context(opened_work_directory(context, repository)).resolve()
        group = stack.enter_context(memory_limit.limited(limit))
        directory = write_images(repository, checkpoint, work, context.progress, edits) if streams is None else None
        # A rehearsal changes nothing, so the tree may be less protected; crckpt reports that.
        attributes = plan_attributes(read_attribute_record(details), tree, allow_weaker=True, is_isolated=True)
        attributes.enter_session()
        isolated = _IsolatedRestore(
            request=request,
            checkpoint=checkpoint,
            criu=criu,
            tree=tree,
            verdict=verdict,
            streams=streams,
            directory=directory,
            work=work,
            group=group,
            limit=limit,
            attributes=attributes,
            pipes=read_pipes(repository, checkpoint, verdict.two_way_pipes),
            # On an overlay the files are on another file system.
            recorded=RecordedFiles.of_details(
                details, by_inode=True, in_flight=read_files_in_flight(repository, checkpoint)
            ),
        )
        return _run_isolated(isolated)


def _judge(
    planned: PlannedRestore, files: tuple[StoredFile, ...], place: Path, values: dict[str, str]
) -> tuple[RestoreVerdict, int]:
    """Judge the rehearsal, which writes to `place`; return also its limit of memory in bytes. `values`: for findings.

    It is enough for the tree to double its memory, and for the files that it may write to.
    """
    tree = planned.tree
    # In namespaces of its own all ports and terminals are free. Files on an overlay are other files, without locks
    # and writers.
    unused = {"refused": {}, "locks": {}, "writers": {}, "terminals": frozenset[int]()}
    host = replace(survey(planned, files, place), **unused)
    verdict = judge_restore(planned, host)
    blockers = (*find_rehearsal_blockers(tree, needs_terminal=verdict.needs_terminal), *verdict.blockers)
    if blockers:
        raise preflight_refusal(tuple(blocker.fill(**values) for blocker in blockers))
    pages, written, free = host.resources.memory, writable_bytes(tree, host.files), host.resources.free_memory
    if pages + written > free:
        sizes = {"needed": pages + written, "memory": pages, "files": written, "free": free}
        words = {name: mebibytes(size) for name, size in sizes.items()}
        raise preflight_refusal((cause("memory-rehearsed").finding(**words),))
    return verdict, min(2 * (pages + written) + _SPARE, free)


def _run_isolated(isolated: _IsolatedRestore) -> RehearsalResult:
    """Restore the tree, let it run, run the probe, and end everything.

    Raises RehearsalFailed, RestoreFailed, IntegrityError, OSError.
    """
    tree, work, verdict, attributes = isolated.tree, isolated.work, isolated.verdict, isolated.attributes.verdict
    # The real path: it is bound at the same place in the new root directory.
    named = {file.name for file in tree.files if isinstance(file, UnixSocket) and file.external}
    places = {os.path.realpath(name) for name in named if name.startswith("/") and Path(name).exists()}
    sockets = tuple(sorted(places))
    # Everything that is started for the tree joins the group: the init, CRIU and the probe share its memory limit.
    joining = () if isolated.group is None else isolated.group.joining
    links = tuple((link.path, link.name) for link in verdict.links)
    plan = SeclusionPlan(str(work), sockets, find_needed_addresses(tree), verdict.rewinds, isolated.limit, links)
    with ExitStack() as stack:
        # First, so that it is closed last: children of a CRIU that was killed listen until the namespaces end.
        streamer = stack.enter_context(serving(work))
        once_ended = stack.enter_context(ExitStack())
        if isolated.streams is not None:
            streamer.serve(isolated.streams)
        new = stack.enter_context(throwaway(tree.root.pid, plan, joining))
        numbers = find_needed_numbers(tree)
        stack.enter_context(lower_numbers_held(numbers, f"/proc/{new.init}/root/dev/pts/ptmx"))
        inside = (*joining, *nsenter_words(new.init, REHEARSAL_KINDS))
        watches: list[ExitWatch] = []
        lost: list[Finding] = []

        def in_hold() -> None:
            streamer.check()
            lost.extend(prepare_tree(isolated.attributes, new.init, isolated.streams, isolated.recorded))
            # A restored zombie has ended already, as it had at the dump.
            living = (process.pid for process in tree.processes if process.state != ZOMBIE)
            watches.append(stack.enter_context(watched_exits(new.init, living)))

        result = _run_criu(isolated, inside, streamer, in_hold)
        # CRIU has succeeded, so the hold was reached.
        (watch,) = watches
        ran_s = watch.wait(tree.root.pid, isolated.request.seconds)
        probe = _run_probe(isolated, new.init, joining, once_ended)
        ended = _end(tree, watch.find_ended(), new)
        out_of_memory = isolated.group is not None and isolated.group.ran_out
        return RehearsalResult(
            checkpoint=isolated.checkpoint,
            criu=isolated.criu,
            warnings=(*rehearsal_warnings(verdict), *attributes.weaker, *attributes.lost, *lost),
            failures=tuple(_failures(tree, ended, probe, out_of_memory=out_of_memory)),
            restore_ms=(result.ended - result.started) * 1000,
            ran_s=ran_s,
            ended=ended,
            probe=probe,
            memory_limit=None if isolated.group is None else isolated.limit,
            closed=len(tree.established),
            sockets=sockets,
            unwritable=new.unwritable,
        )


def _run_criu(
    isolated: _IsolatedRestore, inside: tuple[str, ...], streamer: Streamer, in_hold: Callable[[], None]
) -> CriuResult:
    work = isolated.work
    with (
        holds_at(work / "hold", "post-restore") as (hold,),
        inherited_ends(OutsideEnds(isolated.verdict.outside_pipes, contents=isolated.pipes), None) as (ends, _),
    ):
        # The other side is not there: a connection that were kept would send to nobody.
        options = replace(isolated.checkpoint.options, tcp="close" if isolated.tree.established else None)
        paths = Paths(isolated.directory or streamer.directory, work, hold.script)
        stream = isolated.directory is None
        criu = isolated.criu.path
        command = restore_command(criu, paths, options, sibling=False, inherit=tuple(ends), stream=stream)
        holders = work / HOLDERS
        create_holders(holders)
        write_holders(holders, isolated.tree)
        last_calls = LastCalls(work)
        last_calls.create()
        last_calls.write(isolated.tree)
        try:
            result = run_criu(
                (*inside, *words_without_groups(), *restore_words(criu, holders, last_calls.path), *command),
                work / "restore.log",
                hold=hold,
                in_hold=in_hold,
                keep=(streamer.descriptor, *ends.values()),
                limited=True,
            )
        except OSError:
            _check_memory(isolated)
            raise
    if not result.ok:
        # What explains more comes first: a damaged store, too little memory, and only then what CRIU says of it.
        streamer.check()
        _check_memory(isolated)
        find_place, values = partial(name_place_in_images, isolated.tree), isolated.request.values
        raise criu_failure(result, RehearsalFailed, "the rehearsal", find_place, NOTHING_LEFT, values=values)
    last_calls.check_done()
    return result


def _check_memory(isolated: _IsolatedRestore) -> None:
    if isolated.group is not None and isolated.group.ran_out:
        raise RehearsalFailed(f"the rehearsal failed: {_NO_MEMORY}", state=NOTHING_LEFT)


def _run_probe(
    isolated: _IsolatedRestore, init: int, joining: tuple[str, ...], once_ended: ExitStack
) -> ProbeResult | None:
    probe, rights = isolated.request.probe, isolated.tree.root.core.rights
    if not probe or rights is None:
        return None
    output = isolated.work / "probe.out"
    # The tree may have changed the programs and libraries there, so the probe has no more rights than the tree's root.
    child = run_as_tree.start(init, run_as_tree.rights_of(rights), probe, joining=joining, output=output)
    # A probe that takes too long is not killed: nobody would reap its child, and the namespaces would not end.
    once_ended.callback(child.wait)
    status = child.wait() if child.ends_within(_PROBE_S) else None
    said = read_file_ends(output).decode(errors="replace")[-_MOST_OUTPUT:].strip()
    return ProbeResult(probe, status, said)


def _end(tree: ImageTree, ended: dict[int, int | None], new: Throwaway) -> tuple[EndedProcess, ...]:
    """End the namespaces; the processes that had ended before."""
    root = tree.root.pid
    status = new.end()
    # The kernel may have no status of a process that is not our child; the init ends with the root's.
    if root in ended and ended[root] is None:
        ended[root] = status if status <= 128 else 128 - status
    return tuple(EndedProcess(each.pid, each.comm, ended[each.pid]) for each in tree.processes if each.pid in ended)


def _failures(
    tree: ImageTree, all_ended: tuple[EndedProcess, ...], probe: ProbeResult | None, *, out_of_memory: bool
) -> Iterator[str]:
    for ended in all_ended:
        if ended.status is not None and ended.status < 0:
            yield f"process {ended.pid} ({ended.comm}) was ended by signal {-ended.status}"
        elif ended.pid == tree.root.pid and ended.status:
            yield f"process {ended.pid} ({ended.comm}), the root of the tree, ended with status {ended.status}"
    if out_of_memory:
        yield _NO_MEMORY
    if probe is not None and probe.status is None:
        yield f"the probe did not end within {_PROBE_S:g} s"
    elif probe is not None and probe.status:
        yield f"the probe ended with status {probe.status}"
