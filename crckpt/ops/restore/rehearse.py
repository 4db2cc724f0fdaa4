"""Restore a checkpoint where it changes nothing, let it run for a while, and end it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding, cause, mebibytes
from crckpt.criu.command import Paths, restore_command
from crckpt.criu.engine import CriuResult, run_criu
from crckpt.criu.find import Criu
from crckpt.criu.hold import holds_at
from crckpt.criu.streamer import Streamer, serving
from crckpt.errors import Interrupted, RehearsalFailed, RestoreFailed
from crckpt.host.disk.log_ends import read_file_ends
from crckpt.host.namespaces import as_tree
from crckpt.host.namespaces import memory_limit as limited_group
from crckpt.host.namespaces.isolation import Plan
from crckpt.host.namespaces.rehearsal import KINDS, Throwaway, throwaway
from crckpt.host.process.exits import Watch, watched
from crckpt.images.core import ZOMBIE
from crckpt.images.creds import Rights, read_rights
from crckpt.images.pipes import PipeContent
from crckpt.images.sockets import UnixSocket
from crckpt.images.tree import ImageTree
from crckpt.ops.context import Context, entered, need_root
from crckpt.ops.failures import as_ours, explained, limited_waits_of_restore, refused
from crckpt.ops.inspect.images import Streamed, laid_out, orphaned, pipe_contents, tree_of
from crckpt.ops.resources import in_images
from crckpt.ops.restore.attributes import PutBack, prepare
from crckpt.ops.restore.open_files import Known, check
from crckpt.ops.restore.restore import complete, outside_ends
from crckpt.ops.restore.survey import survey
from crckpt.preflight.attribute_record import read_attribute_record
from crckpt.preflight.restore.host import HostState
from crckpt.preflight.restore.judge import Verdict, judge_restore
from crckpt.preflight.restore.planned import PlannedRestore
from crckpt.preflight.restore.rehearsal import (
    find_rehearsal_blockers,
    needed_addresses,
    rehearsal_warnings,
    writable_bytes,
)
from crckpt.store import Checkpoint, Repository, read_file, reader
from crckpt.store.read.details import read_details
from crckpt.tracking.preload.library import restore_words

PROBE_S: Final = 60.0
"""A probe that takes longer has failed."""

_NO_MEMORY: Final = "the memory that a rehearsal may take did not suffice"
_NOTHING_LEFT: Final = "; nothing is left behind"
_SAID: Final = 4000
_SPARE: Final = 512 << 20


class Request(Struct, frozen=True):
    """What the user asked for: how many seconds the tree is to run, unless its root ends, and a command to run then."""

    ref: str
    seconds: float = 2.0
    probe: tuple[str, ...] = ()


class Ended(Struct, frozen=True):
    """A process that ended before the rehearsal did. `status` is its exit status or minus the signal, if known."""

    pid: int
    comm: str
    status: int | None


class Probed(Struct, frozen=True):
    """What the probe said. `status` is its exit status or minus the signal; None if it was ended for its time."""

    command: tuple[str, ...]
    status: int | None
    output: str


class Rehearsed(Struct, frozen=True):
    """A rehearsal whose tree came up. `failures` say in words why it failed all the same; none if it did not.

    `memory_limit` is in bytes, None where this host gives no limit. `closed` are TCP connections that were closed,
    `sockets` paths of the host's sockets that were within reach, `unwritable` mount points that a restore can write to
    and this could not.
    """

    checkpoint: Checkpoint
    criu: Criu
    warnings: tuple[Finding, ...]
    failures: tuple[str, ...]
    restore_ms: float
    ran_s: float
    ended: tuple[Ended, ...]
    probe: Probed | None
    memory_limit: int | None
    closed: int
    sockets: tuple[str, ...]
    unwritable: tuple[str, ...]


class _Subject(Struct, frozen=True):
    """One checkpoint to rehearse, all that is known of it, and where: `work` is private, and all that is written.

    `files` has the images if CRIU cannot have them as streams.
    """

    request: Request
    checkpoint: Checkpoint
    criu: Criu
    tree: ImageTree
    verdict: Verdict
    images: Streamed | None
    files: Path | None
    work: Path
    group: limited_group.Group | None
    put_back: PutBack
    contents: tuple[PipeContent, ...] = ()
    had: Known = Known({})
    rights: Rights | None = None


class _Run(Struct, frozen=True):
    """How the tree came up, and what it did then."""

    restore_ms: float
    ran_s: float
    ended: tuple[Ended, ...]
    probe: Probed | None
    unwritable: tuple[str, ...]
    lost: tuple[Finding, ...]


def rehearse(request: Request, context: Context) -> Rehearsed:
    """Restore `request.ref` in throwaway namespaces; nothing of it is left when this returns or raises.

    Raises NoSuchCheckpoint, IntegrityError, PreflightRefused, HostCannot, and RehearsalFailed if the tree does not come
    up.
    """
    need_root("to rehearse a restore")
    repository = context.repository()
    with repository.shared():
        checkpoint = repository.get(repository.resolve(request.ref))
        try:
            return _rehearse(request, context, repository, checkpoint)
        except RestoreFailed as error:
            # Raised in the hold, by checks that a restore has, too.
            raise RehearsalFailed(error.message, hint=error.hint, causes=error.causes) from error
        except (Interrupted, OSError) as error:
            ours = as_ours(error, RehearsalFailed, "the rehearsal")
            raise type(ours)(f"{ours.message}{_NOTHING_LEFT}", hint=ours.hint) from error


def _rehearse(request: Request, context: Context, repository: Repository, checkpoint: Checkpoint) -> Rehearsed:
    criu = context.criu()
    with ExitStack() as stack:
        reading = stack.enter_context(reader(repository, checkpoint))
        tree = tree_of(repository, checkpoint)
        stack.enter_context(limited_waits_of_restore(tree.users))
        images = None
        if not tree.is_read_by_position:
            images = Streamed(reading, tree, context.progress, orphaned(tree))
            images.begin()
        details = read_details(repository, checkpoint)
        planned = _planned_restore(checkpoint, tree, criu, details)
        # In a network of its own every port is free, and so is every lock on an overlay, whose files are others.
        now = replace(survey(planned, reading.files, context.store), refused={}, locks={}, writers={})
        verdict = _verdict(planned, now)
        limit = _memory(tree, now)
        work = stack.enter_context(repository.transaction()).path.resolve()
        group = stack.enter_context(limited_group.limited(limit))
        files = None
        if images is None:
            files = laid_out(repository, checkpoint, work, context.progress, orphaned(tree))
        # Where it changes nothing it may be weaker, if that is said.
        put_back = prepare(read_attribute_record(details), tree, allow_weaker=True, in_seclusion=True)
        put_back.enter_session()
        contents = pipe_contents(repository, checkpoint, verdict.two_way_pipes)
        # In an overlay they are of another file system.
        had = Known(details.get("files", {}), by_inode=True)
        core = f"core-{tree.root.pid}.img"
        rights = read_rights(read_file(repository, checkpoint, core), core)
        subject = _Subject(
            request, checkpoint, criu, tree, verdict, images, files, work, group, put_back, contents, had, rights
        )
        done = _run(subject, limit)
        out_of_memory = group is not None and group.ran_out
    return Rehearsed(
        checkpoint=checkpoint,
        criu=criu,
        warnings=(*verdict.warnings, *put_back.verdict.weaker, *put_back.verdict.lost, *done.lost),
        failures=tuple(_failures(tree, done, out_of_memory=out_of_memory)),
        restore_ms=done.restore_ms,
        ran_s=done.ran_s,
        ended=done.ended,
        probe=done.probe,
        memory_limit=None if group is None else limit,
        closed=len(tree.established),
        sockets=_sockets(tree),
        unwritable=done.unwritable,
    )


def _planned_restore(checkpoint: Checkpoint, tree: ImageTree, criu: Criu, details: dict[str, Any]) -> PlannedRestore:
    """As for a restore with PIDs of its own, in which files may be cut back."""
    return PlannedRestore(
        tree=tree,
        created=checkpoint.created,
        cpu_features=checkpoint.host.cpu_features,
        keeps_connections=False,
        append_sizes=details.get("append_sizes", {}),
        grown="rewind",
        new_pid_namespace=True,
        has_terminal=True,
        crius=(checkpoint.host.criu_version, criu.version),
        closed_pipes=frozenset(details.get("closed_pipes", ())),
    )


def _verdict(planned: PlannedRestore, host: HostState) -> Verdict:
    verdict = judge_restore(planned, host)
    blockers = (*find_rehearsal_blockers(planned.tree, needs_terminal=verdict.needs_terminal), *verdict.blockers)
    if blockers:
        raise refused(blockers)
    return replace(verdict, warnings=rehearsal_warnings(verdict))


def _memory(tree: ImageTree, host: HostState) -> int:
    """The limit in bytes: room for the tree to double, and for the files that it may write to."""
    pages, files, free = host.resources.memory, writable_bytes(tree, host.files), host.resources.free_memory
    if pages + files > free:
        said = {"needed": pages + files, "memory": pages, "files": files, "free": free}
        in_words = {name: mebibytes(size) for name, size in said.items()}
        raise refused((cause("memory-rehearsed").told(**in_words),))
    return min(2 * (pages + files) + _SPARE, free)


def _sockets(tree: ImageTree) -> tuple[str, ...]:
    """Sockets of others that the tree was connected to, where they are."""
    named = {file.name for file in tree.files if isinstance(file, UnixSocket) and file.external}
    return tuple(sorted({os.path.realpath(name) for name in named if name.startswith("/") and Path(name).exists()}))


def _run(subject: _Subject, limit: int) -> _Run:
    tree, work = subject.tree, subject.work
    joining = () if subject.group is None else subject.group.joining
    cut = tuple((rewind.path, rewind.size) for rewind in subject.verdict.rewinds)
    plan = Plan(str(work), _sockets(tree), needed_addresses(tree), cut, limit)
    with ExitStack() as stack:
        # First, to be closed last: a CRIU that was cut short has left children who listen, until the namespaces end.
        streamer = stack.enter_context(serving(work))
        once_ended = stack.enter_context(ExitStack())
        if subject.images is not None:
            streamer.serve(subject.images)
        new = stack.enter_context(throwaway(tree.root.pid, plan, joining))
        inside = (*joining, *entered(new.init, KINDS))
        watches: list[Watch] = []
        lost: list[Finding] = []

        def look() -> None:
            streamer.check()
            complete(tree, new.init, subject.images)
            check(tree, subject.had, new.init, allow_weaker=False)
            lost.extend(subject.put_back(new.init))
            living = (process.pid for process in tree.processes if process.state != ZOMBIE)
            watches.append(stack.enter_context(watched(new.init, living)))

        outcome = _restored(subject, inside, streamer, look)
        (watch,) = watches
        ran_s = watch.wait(tree.root.pid, subject.request.seconds)
        probe = _probed(subject, new.init, joining, once_ended)
        ended = watch.ended()
        return _Run(
            restore_ms=(outcome.ended - outcome.started) * 1000,
            ran_s=ran_s,
            ended=_ended(tree, ended, new),
            probe=probe,
            unwritable=new.secluded.unwritable,
            lost=tuple(lost),
        )


def _restored(subject: _Subject, inside: tuple[str, ...], streamer: Streamer, look: Callable[[], None]) -> CriuResult:
    """Let CRIU build the tree, and let it run if `look` raises nothing in the hold."""
    work = subject.work
    with (
        holds_at(work / "hold", "post-restore") as (hold,),
        outside_ends(subject.verdict.outside_pipes, None, subject.contents) as kept,
    ):
        # There are no peers: a connection that were kept would send into the void.
        options = replace(subject.checkpoint.options, tcp="close" if subject.tree.established else None)
        paths = Paths(subject.files or streamer.directory, work, hold.script)
        stream = subject.files is None
        command = restore_command(subject.criu.path, paths, options, sibling=False, inherit=tuple(kept), stream=stream)
        try:
            outcome = run_criu(
                (*inside, *restore_words(subject.criu.path), *command),
                work / "restore.log",
                hold=hold,
                in_hold=look,
                keep=(streamer.descriptor, *kept.values()),
                limited=True,
            )
        except OSError:
            _check_memory(subject)
            raise
    if not outcome.ok:
        streamer.check()
        _check_memory(subject)
        raise explained(outcome, RehearsalFailed, "the rehearsal", in_images(subject.tree), _NOTHING_LEFT)
    return outcome


def _check_memory(subject: _Subject) -> None:
    if subject.group is not None and subject.group.ran_out:
        raise RehearsalFailed(f"the rehearsal failed: {_NO_MEMORY}{_NOTHING_LEFT}")


def _probed(subject: _Subject, init: int, joining: tuple[str, ...], once_ended: ExitStack) -> Probed | None:
    probe, rights = subject.request.probe, subject.rights
    if not probe or rights is None:
        return None
    output = subject.work / "probe.out"
    # The tree may have changed what is executed and loaded there: that has no more rights than its root.
    child = as_tree.start(init, as_tree.rights_of(rights), probe, joining=joining, output=output)
    # Not killed: its child in the namespaces would be somebody else's to reap, and they end only when that is done.
    once_ended.callback(child.wait)
    status = child.wait() if child.ends_within(PROBE_S) else None
    said = read_file_ends(output).decode(errors="replace")[-_SAID:].strip()
    return Probed(probe, status, said)


def _ended(tree: ImageTree, ended: dict[int, int | None], new: Throwaway) -> tuple[Ended, ...]:
    root = tree.root.pid
    status = new.end()
    if root in ended and ended[root] is None:
        ended[root] = status if status <= 128 else 128 - status
    return tuple(Ended(each.pid, each.comm, ended[each.pid]) for each in tree.processes if each.pid in ended)


def _failures(tree: ImageTree, done: _Run, *, out_of_memory: bool) -> Iterator[str]:
    for each in done.ended:
        if each.status is not None and each.status < 0:
            yield f"process {each.pid} ({each.comm}) was ended by signal {-each.status}"
        elif each.pid == tree.root.pid and each.status:
            yield f"process {each.pid} ({each.comm}), the root of the tree, ended with status {each.status}"
    if out_of_memory:
        yield _NO_MEMORY
    if done.probe is not None and done.probe.status is None:
        yield f"the probe did not end within {PROBE_S:g} s"
    elif done.probe is not None and done.probe.status:
        yield f"the probe ended with status {done.probe.status}"
