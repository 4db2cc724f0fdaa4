"""Dump a tree that was looked at, and store its checkpoint: what `crckpt.ops.dump.dump` loads while CRIU starts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from crckpt.criu.command import Paths
from crckpt.criu.engine import CriuResult, read_log, run_id
from crckpt.criu.find import Criu
from crckpt.errors import DumpFailed, IntegrityError, PreflightRefused
from crckpt.host import machine, proc
from crckpt.host.attributes.credentials import rights_below
from crckpt.host.disk.files import remove_tree
from crckpt.host.observe.pipes import closed_pipes
from crckpt.host.process.cpu_time import left_to
from crckpt.host.process.signals import interrupts_let_in, interrupts_put_off
from crckpt.images.creds import Rights, excess_rights, read_rights
from crckpt.images.inventory import read_inventory
from crckpt.images.stats import read_dump_stats
from crckpt.model import JobName, Task, utc_datetime
from crckpt.ops.dump import attributes, open_files
from crckpt.ops.dump.examine import Copying, Subject, Unfit, looked_at_again, succeeded
from crckpt.ops.dump.gate import gated
from crckpt.ops.dump.job_name import check_series
from crckpt.ops.dump.launch import Place, Started, started
from crckpt.ops.dump.lineage import Tracked, way
from crckpt.ops.dump.pre_copy import pre_copy
from crckpt.ops.dump.request import Request
from crckpt.ops.failures import as_ours
from crckpt.preflight.dump.plan import DumpPlan
from crckpt.store import Checkpoint, NewCheckpoint, ingest, is_blank, load

# The system's init may take its time; any other parent reaps at once, or nobody knows when.
_REAPED_BY_INIT_WITHIN_S = 5.0
_REAPED_BY_PARENT_WITHIN_S = 0.5


class Dumped(Struct, frozen=True):
    """What became of it. `checkpoint` is None after a dry run, and while it is `pending`: the tree runs, it is stored.

    `root_ended` if the tree was to run on, and its root has ended since. `unreaped` are PIDs of the ended tree that its
    parent still keeps: a restore must wait for them. `tracked` is None if nobody asked for an incremental dump.
    """

    job: JobName
    pid: int
    plan: DumpPlan
    command: tuple[str, ...]
    criu: Criu
    stop: bool
    frozen_ms: float = 0.0
    pending: bool = False
    checkpoint: Checkpoint | None = None
    unreaped: tuple[int, ...] = ()
    root_ended: bool = False
    tracked: Tracked | None = None
    copying: Copying | None = None


Running = Callable[[Dumped], None]


def dumped(subject: Subject, place: Place, waiting: Started | None, running: Running) -> Dumped:
    """Dump the tree, by the CRIU that is `waiting` if it suits, and store its checkpoint; as `dump` says."""
    check_series(subject, place.repository)
    with ExitStack() as stack:
        subject = pre_copy(_followed_by(subject, stack), place.repository, place.work, place.staging)
        if waiting is not None and (subject.way is not None or waiting.command != subject.command(waiting.paths)):
            waiting.give_up()
            waiting = None
        try:
            done = _dumped(subject, place, waiting, running)
        except Unfit as error:
            done = _dumped(_to_be_full(subject, error, place), place, None, running)
    if subject.request.stop:
        return replace(done, unreaped=_unreaped(subject.seen.tree))
    return replace(done, root_ended=_root_ended(subject))


def _root_ended(subject: Subject) -> bool:
    return subject.root is not None and not subject.root.lives


def dry_run(subject: Subject) -> Dumped:
    """What would be done; nothing is begun, no tracker is started, and no store made.

    Raises StoreUnusable if there is one that cannot be used.
    """
    if not is_blank(subject.context.store):
        subject.context.repository()
    tracked = subject.foreseen(wanted=subject.request.wants_tracker)
    done = _result(subject, subject.command(Paths(Path("IMAGES"), Path("WORK"))))
    return replace(done, tracked=tracked, copying=Copying(()) if subject.request.pre_copy is not None else None)


def _followed_by(subject: Subject, stack: ExitStack) -> Subject:
    """The subject, and the way to dump it."""
    wanted = subject.request.wants_tracker
    found = way(subject.seen.tree.root, subject.criu.path, wanted=wanted, apart=subject.apart)
    if found is not None:
        stack.callback(found.close)
    return replace(subject, way=found)


def _result(subject: Subject, command: tuple[str, ...]) -> Dumped:
    pid, stop = subject.seen.tree.root.pid, subject.request.stop
    return Dumped(subject.job, pid, subject.planned, command, subject.criu, stop, copying=subject.copying)


def _dumped(subject: Subject, place: Place, waiting: Started | None, running: Running) -> Dumped:
    if subject.way is not None:
        counts = subject.way.followed is not None and subject.copying is not None and bool(subject.copying.rounds)
        subject.way.begin(place.repository, subject.criu.path, lambda: place.staging)
        if counts and subject.base is None and _must_be_short(subject.request):
            raise PreflightRefused(
                f"the tree would be frozen for longer than was foreseen: what was copied beforehand does not count any "
                f"more ({subject.way.told.why_full})",
                hint="try again, or leave out --abort-over",
            )
    if subject.request.stop:
        return _held_until_committed(subject, place, waiting)
    return _left_running(subject, place, waiting, running)


def _to_be_full(subject: Subject, error: Unfit, place: Place) -> Subject:
    """The subject as it is now, and nothing left of the dump that failed. Raises `error` if a long freeze is unwanted.

    A program that replaced itself since it was looked at has other files, and may have another name.
    """
    request, way = subject.request, subject.way
    if way is None or _must_be_short(request):
        raise error
    way.unfit(error.why)
    remove_tree(place.images, "images")
    place.images.mkdir(mode=0o700)
    return looked_at_again(subject)


def _must_be_short(request: Request) -> bool:
    return request.pre_copy is not None and request.pre_copy.abort_over


def _left_running(subject: Subject, place: Place, waiting: Started | None, running: Running) -> Dumped:
    """CRIU freezes, dumps and resumes; then the images go into the store while the tree runs."""
    subject, asked = _asked(subject)
    details, began = _details(subject, asked), time.monotonic()
    rights: dict[int, Rights] = {}
    outcome = succeeded(subject, _followed(subject, place, waiting, rights))
    subject.check_root()
    written = place.work / "stats-dump"
    frozen_ms = read_dump_stats(written.read_bytes()).frozen_time / 1000
    # CRIU writes it when the tree has just gone on.
    ended = utc_datetime(written.stat().st_mtime)
    # Any moment of the freeze names the state that was saved: nothing of the tree could write then.
    subject.check_entered(outcome.log)
    created = ended - timedelta(milliseconds=frozen_ms / 2)
    new = _new(subject, outcome.log, details, created, frozen_ms, (outcome.ended - began) * 1000)
    done = replace(_result(subject, outcome.argv), frozen_ms=frozen_ms, tracked=_tracked(subject, place))
    alone = subject.request.asynchronous
    with interrupts_let_in(), place.repository.announced(new.job, new.created, new.run_id, alone=alone):
        running(replace(done, pending=True, root_ended=_root_ended(subject)))
        try:
            with left_to(subject.seen.tree.pids):
                return replace(done, checkpoint=_committed(subject, place, new, rights))
        except OSError as error:
            raise as_ours(error, DumpFailed, "the dump") from error


def _followed(subject: Subject, place: Place, waiting: Started | None, rights: dict[int, Rights]) -> CriuResult:
    """CRIU's run; `rights` become those that the frozen tree has, if it could be held for a look at them."""

    def look() -> None:
        rights.update(rights_below(subject.seen.tree.root.pid))

    if subject.way is not None and subject.way.tracks:
        return gated(subject, subject.command(place.paths), place.log, subject.way, look)
    # What is loaded beside CRIU makes it a little slower: whoever is only waiting for the tree waits less without.
    meanwhile = (lambda: None) if subject.request.asynchronous else load
    with _going(subject, place, waiting) as going:
        return going.criu.follow(going.last, look, meanwhile)


@contextmanager
def _going(subject: Subject, place: Place, waiting: Started | None) -> Iterator[Started]:
    """A CRIU that freezes the tree now: the one that is `waiting`, or else another."""
    if waiting is None:
        with started(subject.command, place, subject.seen.tree.root.pid, stop=subject.request.stop) as another:
            yield another
        return
    subject.check_root()
    waiting.go_on()
    yield waiting


def _held_until_committed(subject: Subject, place: Place, waiting: Started | None) -> Dumped:
    """The tree is held frozen until its checkpoint is committed, and only then ended."""
    subject, asked = _asked(subject)
    began = time.monotonic()
    saved: list[Checkpoint] = []

    def commit() -> None:
        # An interruption amid an import would leave the lock taken for which the thread that loads waits for ever.
        with interrupts_put_off():
            load()
        subject.check_root()
        if subject.way is not None:
            subject.way.frozen()
        rights = rights_below(subject.seen.tree.root.pid)
        # CRIU writes its statistics after the hold only: until here the freeze is at most all of CRIU's work.
        spent_ms = (time.monotonic() - began) * 1000
        log = read_log(place.log)
        subject.check_entered(log)
        details = _details(subject, asked)
        new = _new(subject, log, details, datetime.now(UTC), spent_ms, spent_ms)
        # If CRIU gave up waiting meanwhile, the tree runs: a checkpoint of its end would be none.
        saved.append(_committed(subject, place, new, rights, going.check))

    with _going(subject, place, waiting) as going:
        succeeded(subject, going.criu.follow(going.last, commit, load))
    return replace(_result(subject, going.command), checkpoint=saved[0], tracked=_tracked(subject, place))


def _tracked(subject: Subject, place: Place) -> Tracked | None:
    if subject.way is None:
        return None
    try:
        return subject.way.counted(read_dump_stats((place.work / "stats-dump").read_bytes()))
    except (OSError, IntegrityError):
        # CRIU writes them when it has ended the tree: a disk that is full by then costs these numbers, and no more.
        return subject.way.told


def _unreaped(tree: proc.Tree) -> tuple[int, ...]:
    """PIDs that the ended tree still holds: its root waits for its parent, all others for init."""
    others = tuple(pid for pid in tree.pids if pid != tree.root.pid)
    starts = {process.pid: process.start for process in tree.processes}
    left = proc.wait_until_gone(others, _REAPED_BY_INIT_WITHIN_S, starts)
    within = _REAPED_BY_INIT_WITHIN_S if tree.root.ppid == 1 else _REAPED_BY_PARENT_WITHIN_S
    return (*proc.wait_until_gone((tree.root.pid,), within, starts), *left)


def _new(
    subject: Subject, log: str, details: dict[str, object], created: datetime, frozen_ms: float, dump_ms: float
) -> NewCheckpoint:
    return NewCheckpoint(
        job=subject.job,
        created=created,
        host=machine.host(subject.criu.version, subject.criu.digest),
        options=subject.planned.options,
        tree=tuple(Task(p.ns_pids[-1], p.ppid, p.comm, p.threads) for p in subject.seen.tree.processes),
        note=subject.request.note,
        run_id=run_id(log),
        stopped=subject.request.stop,
        frozen_ms=frozen_ms,
        dump_ms=dump_ms,
        details=json.dumps(details | {"closed_pipes": _closed_pipes(subject)}, sort_keys=True).encode(),
        config_digest=subject.context.config_digest,
        parent=subject.base.checkpoint if subject.base else None,
        base=subject.base.directory if subject.base else None,
    )


def _committed(
    subject: Subject,
    place: Place,
    new: NewCheckpoint,
    rights: dict[int, Rights],
    check: Callable[[], None] = lambda: None,
) -> Checkpoint:
    context, repository, images = subject.context, place.repository, place.images
    if subject.planned.as_user is not None:
        # CRIU wrote them as the tree's user. The store takes no files of others.
        for image in images.iterdir():
            os.chown(image, os.geteuid(), os.getegid(), follow_symlinks=False)
    if any(images.glob("userns-*.img")):
        raise DumpFailed(
            "the dump failed: a process went to another user namespace while the tree was dumped",
            hint="start it without one (unshare --user), or checkpoint it with its container engine",
        )
    # Of a newer CRIU the format may be another: nothing is stored that could not be read again.
    read_inventory((images / "inventory.img").read_bytes())
    if rights:
        _check_rights(images, rights)
    if subject.base:
        subject.base.lend_pages(images)
    checkpoint = ingest(repository, images, new, compress=context.compress, progress=context.progress, check=check)
    if subject.way is not None:
        subject.way.committed(checkpoint.id)
    if subject.request.tag is not None:
        repository.tag(checkpoint.id, subject.request.tag)
    return checkpoint


def _check_rights(images: Path, rights: dict[int, Rights]) -> None:
    """Raise DumpFailed if a thread would come back with rights that it did not have when the tree was frozen.

    CRIU has each process say for itself what rights it has: from memory that others of its user can write meanwhile.
    """
    for image in images.glob("core-*.img"):
        saved = read_rights(image.read_bytes(), image.name)
        if saved is None:
            continue
        tid = int(image.stem.removeprefix("core-"))
        had = rights.get(tid)
        if had is None or (more := ", ".join(excess_rights(saved, had))):
            what = f"the rights of {more}, which it has not" if had is not None else "rights that nobody has seen"
            raise DumpFailed(
                f"the dump failed: task {tid} told CRIU that it has {what}: its memory was changed meanwhile",
                hint="look which other process of its user did that, and end it",
            )


def _asked(subject: Subject) -> tuple[Subject, attributes.Asked]:
    """What processes say of themselves, and the subject with warnings of what a restore will refuse or lose."""
    asked, findings = attributes.ask(subject.seen.tree, everyone=subject.request.stop)
    planned = subject.planned
    warned = replace(planned, warnings=(*planned.warnings, *findings))
    return replace(subject, planned=warned), asked


def _details(subject: Subject, asked: attributes.Asked) -> dict[str, object]:
    """What CRIU's images lack, and what may be secret: command lines and directories, sizes of append-only files.

    So are the attributes of processes and threads that CRIU does not save, and which files were open.
    """
    processes = [
        {"pid": process.ns_pids[-1], "command_line": words, "directory": directory, "uids": process.uids}
        for process, words, directory in proc.read_commands(subject.seen.tree)
    ]
    logs = [found for found in subject.seen.descriptors if found.is_append_only]
    # A position beyond the end is of a log that was truncated: then no position at the freeze tells anything.
    truncated = {found.target for found in logs if found.pos > found.size}
    appended = {found.target: found.size for found in logs if found.target not in truncated}
    record = attributes.record(subject.seen.tree.root, asked)
    files = open_files.record(subject.seen.tree, subject.seen.descriptors)
    return {"schema": 1, "processes": processes, "append_sizes": appended, "attributes": record, "files": files}


def _closed_pipes(subject: Subject) -> list[int]:
    """Inodes of the pipes that had one end only when the tree was dumped: to be called then, or just after.

    What was closed before the freeze is closed in it. A pipe that still has both ends had them then.
    """
    return sorted(subject.seen.closed_pipes | closed_pipes(subject.seen.descriptors))
