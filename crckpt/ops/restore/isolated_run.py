"""Run a restored tree in throwaway namespaces: start it, let it run, probe it, end it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding
from crckpt.criu.command import Paths, restore_command
from crckpt.criu.engine import CriuResult, run_criu
from crckpt.criu.find import Criu
from crckpt.criu.hold import holds_at
from crckpt.criu.streamer import Streamer, serving
from crckpt.errors import NOTHING_LEFT, RehearsalFailed
from crckpt.helper.pid_namespace.client import REHEARSAL_KINDS, Throwaway, throwaway
from crckpt.host.disk.log_excerpt import read_file_ends
from crckpt.host.namespaces import memory_limit, run_as_tree
from crckpt.host.namespaces.isolation import SeclusionPlan
from crckpt.host.process.pidfd import ExitWatch, watched_exits
from crckpt.host.process.terminals import lower_numbers_held
from crckpt.images.core import ZOMBIE, Rights
from crckpt.images.pipes import PipeContent
from crckpt.images.sockets import UnixSocket
from crckpt.images.tree import ImageTree
from crckpt.ops.context import nsenter_words
from crckpt.ops.failure_locations import name_place_in_images
from crckpt.ops.failures import criu_failure
from crckpt.ops.restore.attempt import HOLDERS
from crckpt.ops.restore.attributes import AttributeRestore, prepare_tree
from crckpt.ops.restore.images import ImageStreams
from crckpt.ops.restore.launch import create_holders, write_holders
from crckpt.ops.restore.open_files import RecordedFiles
from crckpt.ops.restore.outside_ends import OutsideEnds, inherited_ends
from crckpt.ops.restore.request import RehearsalRequest
from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.preflight.restore.descriptors import find_needed_numbers
from crckpt.preflight.restore.rehearsal import find_needed_addresses
from crckpt.store import Checkpoint
from crckpt.tracking.preload.library import restore_words

PROBE_S: Final = 60.0
"""A probe that takes longer has failed."""

NO_MEMORY: Final = "the tree needs more memory than a rehearsal can use"

# Characters of the probe's output that are shown.
_MOST_OUTPUT: Final = 4000


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


class IsolatedRestore(Struct, frozen=True):
    """All that is needed to restore one checkpoint in isolation.

    `work` is a private directory, the only one that is written to. CRIU gets its images from `streams`, or, if that is
    None, from `directory`. `group` limits the memory, if there can be such a group.
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
    attributes: AttributeRestore
    pipes: tuple[PipeContent, ...]
    recorded: RecordedFiles
    rights: Rights | None


class IsolatedRun(Struct, frozen=True):
    """The start of an isolated tree, and what it did then."""

    restore_ms: float
    ran_s: float
    ended: tuple[EndedProcess, ...]
    probe: ProbeResult | None
    unwritable: tuple[str, ...]
    lost: tuple[Finding, ...]


def run_isolated(isolated: IsolatedRestore, limit: int) -> IsolatedRun:
    """Restore the tree, let it run, run the probe, and end everything. `limit` is in bytes of memory.

    Raises RehearsalFailed, RestoreFailed, IntegrityError, OSError.
    """
    tree, work = isolated.tree, isolated.work
    # Everything that is started for the tree joins the group: the init, CRIU and the probe share its memory limit.
    joining = () if isolated.group is None else isolated.group.joining
    cut = tuple((rewind.path, rewind.size) for rewind in isolated.verdict.rewinds)
    links = tuple((link.path, link.name) for link in isolated.verdict.links)
    plan = SeclusionPlan(str(work), reachable_sockets(tree), find_needed_addresses(tree), cut, limit, links)
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
            recorded, attributes = isolated.recorded, isolated.attributes
            lost.extend(prepare_tree(tree, new.init, isolated.streams, recorded, attributes, allow_weaker=False))
            # A restored zombie has ended already, as it had at the dump.
            living = (process.pid for process in tree.processes if process.state != ZOMBIE)
            watches.append(stack.enter_context(watched_exits(new.init, living)))

        result = _run_criu(isolated, inside, streamer, in_hold)
        # CRIU has succeeded, so the hold was reached.
        (watch,) = watches
        ran_s = watch.wait(tree.root.pid, isolated.request.seconds)
        probe = _run_probe(isolated, new.init, joining, once_ended)
        return IsolatedRun(
            restore_ms=(result.ended - result.started) * 1000,
            ran_s=ran_s,
            ended=_end(tree, watch.find_ended(), new),
            probe=probe,
            unwritable=new.unwritable,
            lost=tuple(lost),
        )


def reachable_sockets(tree: ImageTree) -> tuple[str, ...]:
    """Paths of sockets of other programs that the tree was connected to and that still exist."""
    # The real path: it is bound at the same place in the new root directory.
    named = {file.name for file in tree.files if isinstance(file, UnixSocket) and file.external}
    return tuple(sorted({os.path.realpath(name) for name in named if name.startswith("/") and Path(name).exists()}))


def _run_criu(
    isolated: IsolatedRestore, inside: tuple[str, ...], streamer: Streamer, in_hold: Callable[[], None]
) -> CriuResult:
    work = isolated.work
    with (
        holds_at(work / "hold", "post-restore") as (hold,),
        inherited_ends(OutsideEnds(isolated.verdict.outside_pipes, contents=isolated.pipes), None) as ends,
    ):
        # The other side is not there: a connection that were kept would send to nobody.
        options = replace(isolated.checkpoint.options, tcp="close" if isolated.tree.established else None)
        paths = Paths(isolated.directory or streamer.directory, work, hold.script)
        stream = isolated.directory is None
        criu = isolated.criu.path
        command = restore_command(criu, paths, options, sibling=False, inherit=ends.values, stream=stream)
        holders = work / HOLDERS
        create_holders(holders)
        write_holders(holders, isolated.tree)
        try:
            result = run_criu(
                (*inside, *restore_words(criu, holders), *command),
                work / "restore.log",
                hold=hold,
                in_hold=in_hold,
                keep=(streamer.descriptor, *ends.kept),
                limited=True,
            )
        except OSError:
            _check_memory(isolated)
            raise
    if not result.ok:
        # What explains more comes first: a damaged store, too little memory, and only then what CRIU says of it.
        streamer.check()
        _check_memory(isolated)
        find_place, values = name_place_in_images(isolated.tree), isolated.request.values
        raise criu_failure(result, RehearsalFailed, "the rehearsal", find_place, NOTHING_LEFT, values=values)
    return result


def _check_memory(isolated: IsolatedRestore) -> None:
    if isolated.group is not None and isolated.group.ran_out:
        raise RehearsalFailed(f"the rehearsal failed: {NO_MEMORY}", state=NOTHING_LEFT)


def _run_probe(
    isolated: IsolatedRestore, init: int, joining: tuple[str, ...], once_ended: ExitStack
) -> ProbeResult | None:
    probe, rights = isolated.request.probe, isolated.rights
    if not probe or rights is None:
        return None
    output = isolated.work / "probe.out"
    # The tree may have changed the programs and libraries there, so the probe has no more rights than the tree's root.
    child = run_as_tree.start(init, run_as_tree.rights_of(rights), probe, joining=joining, output=output)
    # A probe that takes too long is not killed: nobody would reap its child, and the namespaces would not end.
    once_ended.callback(child.wait)
    status = child.wait() if child.ends_within(PROBE_S) else None
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
