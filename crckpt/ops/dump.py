"""Checkpoint a tree. It goes on running, or (`stop`) is ended once its checkpoint is safe."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding
from crckpt.criu.command import Paths, dump_command
from crckpt.criu.engine import Outcome, follow, run_id
from crckpt.criu.find import Criu
from crckpt.criu.hold import held
from crckpt.errors import DumpFailed, Interrupted, UsageError
from crckpt.host import machine, observe, proc, room, targets
from crckpt.host.signals import interrupts_let_in, interrupts_put_off
from crckpt.images.inventory import read_inventory
from crckpt.images.stats import read_dump_stats
from crckpt.model import CheckpointId, JobName, Task
from crckpt.ops.aftermath import tree_state_said, untouched_said
from crckpt.ops.context import Context, as_user, entered, need_root
from crckpt.ops.failures import as_ours, explained, refused
from crckpt.ops.incremental import Tracked, Way, way
from crckpt.preflight.dump import Plan, plan, refusal
from crckpt.preflight.room import Room, shortages
from crckpt.store import STAGING, Checkpoint, NewCheckpoint, Repository, check_name, ingest, load, staged

# The system's init may take its time; any other parent reaps at once, or nobody knows when.
_REAPED_BY_INIT_WITHIN_S = 5.0
_REAPED_BY_PARENT_WITHIN_S = 0.5
_ENDING_S = 0.5
_BASE = "base"
"""Beside the images: what CRIU wants of the dump before."""


class Request(Struct, frozen=True):
    """What the user asked for. Without `preflight` it is left to CRIU to find what stands against a dump.

    `incremental` None: if the tree is tracked already.
    """

    target: str
    job: str | None = None
    stop: bool = False
    tcp: Literal["keep", "close"] | None = None
    tag: str | None = None
    note: str | None = None
    dry_run: bool = False
    asynchronous: bool = False
    preflight: bool = True
    incremental: bool | None = None


class Dumped(Struct, frozen=True):
    """What became of it. `checkpoint` is None after a dry run, and while it is `pending`: the tree runs, it is stored.

    `unreaped` are PIDs of the ended tree that its parent still keeps: a restore must wait for them. `tracked` is
    None if nobody asked for an incremental dump.
    """

    job: JobName
    pid: int
    plan: Plan
    command: tuple[str, ...]
    criu: Criu
    stop: bool
    frozen_ms: float = 0.0
    pending: bool = False
    checkpoint: Checkpoint | None = None
    unreaped: tuple[int, ...] = ()
    tracked: Tracked | None = None


Running = Callable[[Dumped], None]


def dump(request: Request, context: Context, running: Running = lambda _: None) -> Dumped:
    """Checkpoint the tree that `request.target` names. `running` is called once it runs again, and before it is stored.

    If `request` is asynchronous nobody hears of what fails after that: it is remembered as lost.

    Raises UsageError, PreflightRefused, HostCannot, StoreUnusable, StoreLocked, DumpFailed (the tree runs on),
    TreeStopped or Interrupted; what comes when the checkpoint is made interrupts nothing.
    """
    done: Dumped | None = None
    try:
        with ExitStack() as stack:
            with untouched_said():
                subject = _subject(request, context)
                if request.dry_run:
                    return _result(subject, subject.command(Paths(Path("IMAGES"), Path("WORK"))))
                repository = context.repository(create=True)
                stack.enter_context(repository.shared())
                work = stack.enter_context(repository.transaction()).path
                staging = work
                if context.staging is not None:
                    staging = stack.enter_context(staged(context.staging))
                    (work / STAGING).symlink_to(staging)
                paths = _paths(work, staging)
            stack.enter_context(interrupts_put_off())
            with tree_state_said(subject.seen.tree, paths.work / "dump.log", repository):
                subject = replace(subject, way=_way(subject, stack, repository, staging))
                if request.stop:
                    done = _held_until_committed(subject, repository, paths)
                else:
                    done = _left_running(subject, repository, paths, running)
        if request.stop:
            done = replace(done, unreaped=_unreaped(subject.seen.tree))
    except Interrupted:
        if done is None:
            raise
    return done


class Examined(Struct, frozen=True):
    """What a dump of a tree would meet, and do: `blockers` stand against it, `plan` has warnings and options."""

    pid: int
    blockers: tuple[Finding, ...]
    plan: Plan
    seen: observe.Observed
    job: JobName
    criu: Criu


def examine(request: Request, context: Context) -> Examined:
    """Look at a tree as `dump` does before it freezes it. Raises UsageError, PreflightRefused, HostCannot."""
    need_root("to look into a process")
    subject = _looked_at(request, context)
    return Examined(
        subject.seen.tree.root.pid, _against(subject), subject.planned, subject.seen, subject.job, subject.criu
    )


def _subject(request: Request, context: Context) -> _Subject:
    need_root("to checkpoint a process")
    if request.stop and request.asynchronous:
        hint = "leave one of them out"
        raise UsageError("--stop ends the tree once its checkpoint is safe: --async cannot wait for that", hint=hint)
    subject = _looked_at(request, context)
    if request.preflight and (blockers := _against(subject)):
        raise refused(blockers)
    return subject


def _against(subject: _Subject) -> tuple[Finding, ...]:
    return (*subject.planned.blockers, *shortages(subject.seen.memory, _room(subject.context)))


def _looked_at(request: Request, context: Context) -> _Subject:
    seen, job = _look(request)
    criu = context.criu()
    planned = plan(
        seen,
        request.tcp,
        stop=request.stop,
        locks_by_nftables=criu.locks_by_nftables,
        names={tracer: proc.title(tracer) for tracer in seen.tracers},
    )
    return _Subject(request, context, seen, job, criu, planned)


def _room(context: Context) -> Room:
    if context.staging is not None and not context.staging.is_dir():
        raise UsageError(f"--staging: {context.staging} is no directory", hint="make it, or name another")
    store = room.existing(context.store)
    directory = context.staging or store
    return Room(
        directory=str(directory),
        disk=room.free_disk(directory),
        memory=room.free_memory(),
        in_memory=room.is_in_memory(directory),
        beside=directory.stat().st_dev == store.stat().st_dev,
        read_only=next((str(place) for place in (store, directory) if room.is_read_only(place)), ""),
    )


def _way(subject: _Subject, stack: ExitStack, repository: Repository, staging: Path) -> Way | None:
    planned = subject.planned
    apart = bool(planned.enter) or planned.as_user is not None
    found = way(subject.seen.tree.root, subject.criu.path, wanted=subject.request.incremental, apart=apart)
    if found is not None:
        stack.callback(found.close)
        found.begin(repository, subject.criu.path, staging / _BASE)
    return found


def _paths(work: Path, staging: Path) -> Paths:
    images = staging / "images"
    images.mkdir(mode=0o700)
    return Paths(images, work)


class _Subject(Struct, frozen=True):
    """What is dumped, how, and for whom: all that is known before anything is touched.

    `way` is None unless the dump is to be incremental, or a base of one.
    """

    request: Request
    context: Context
    seen: observe.Observed
    job: JobName
    criu: Criu
    planned: Plan
    way: Way | None = None

    @property
    def base(self) -> CheckpointId | None:
        """The checkpoint that the dump counts from."""
        return self.way.told.base if self.way is not None else None

    def command(self, paths: Paths) -> tuple[str, ...]:
        root, enter = self.seen.tree.root, self.planned.enter
        pid = root.ns_pids[-1] if "pid" in enter else root.pid
        words = dump_command(
            self.criu.path,
            pid,
            _seen_from(enter, paths),
            self.planned.options,
            leave_running=not self.request.stop,
            unprivileged=self.planned.as_user is not None,
            track=self.way is not None and self.way.tracks,
            base=f"../{_BASE}" if self.base else None,
        )
        if self.way is not None and self.way.tracks and self.way.environment:
            words = ("env", *self.way.environment, *words)
        user = as_user(self.planned.as_user, self.seen.own_capabilities)
        return (*entered(root.pid, enter), *user, *words)


def _seen_from(enter: tuple[str, ...], paths: Paths) -> Paths:
    """The paths for a CRIU in another mount namespace, where /tmp may be another and /var/lib read-only (systemd)."""
    if enter != ("mnt",) or not paths.work.is_absolute():
        return paths
    # /proc/PID/root leads into the files of PID, wherever it is followed; /proc itself is shared with the PIDs.
    ours = Path(f"/proc/{os.getpid()}/root")
    images, work = (ours / path.relative_to("/") for path in (paths.images, paths.work))
    return Paths(images, work, ours / paths.script.relative_to("/") if paths.script else None)


def _look(request: Request) -> tuple[observe.Observed, JobName]:
    pid = targets.resolve(request.target)
    own = proc.read_process(os.getpid())
    process = proc.read_process(pid)
    assert own is not None
    against = refusal(process, pid, own.pid, proc.ancestors(own.pid))
    if process is None or against is not None:
        assert against is not None
        raise UsageError(against.what, hint=against.remedy) if process is None else refused((against,))
    job = check_name(request.job, "job") if request.job is not None else _job_of(process.comm)
    if request.tag is not None:
        check_name(request.tag, "tag")
    return observe.observe(process, own), JobName(job)


def _job_of(comm: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", comm).strip("-._") or "job"


def _result(subject: _Subject, command: tuple[str, ...]) -> Dumped:
    pid, stop = subject.seen.tree.root.pid, subject.request.stop
    return Dumped(subject.job, pid, subject.planned, command, subject.criu, stop)


def _left_running(subject: _Subject, repository: Repository, paths: Paths, running: Running) -> Dumped:
    """CRIU freezes, dumps and resumes; then the images go into the store while the tree runs."""
    details = _details(subject)
    outcome = _succeeded(subject, _followed(subject, paths))
    written = paths.work / "stats-dump"
    frozen_ms = read_dump_stats(written.read_bytes()).frozen_time / 1000
    # CRIU writes it when the tree has just gone on.
    ended = datetime.fromtimestamp(written.stat().st_mtime, UTC)
    # Any moment of the freeze names the state that was saved: nothing of the tree could write then.
    created = ended - timedelta(milliseconds=frozen_ms / 2)
    new = _new(subject, outcome.log, details, created, frozen_ms, (outcome.ended - outcome.started) * 1000)
    done = replace(_result(subject, outcome.argv), frozen_ms=frozen_ms, tracked=_tracked(subject, paths))
    alone = subject.request.asynchronous
    with interrupts_let_in(), repository.announced(new.job, new.created, new.run_id, alone=alone):
        running(replace(done, pending=True))
        try:
            return replace(done, checkpoint=_committed(subject, repository, paths, new))
        except OSError as error:
            raise as_ours(error, DumpFailed, "the dump") from error


def _followed(subject: _Subject, paths: Paths) -> Outcome:
    """CRIU's run. Where it tracks, the tree is looked at while it is frozen."""
    log = paths.work / "dump.log"
    if subject.way is None or not subject.way.tracks:
        return follow(subject.command(paths), log, meanwhile=load)
    with held(paths.work / "hold", "post-dump") as hold:
        command = subject.command(Paths(paths.images, paths.work, hold.script))
        return follow(command, log, hold=hold, in_hold=subject.way.frozen, meanwhile=load)


def _held_until_committed(subject: _Subject, repository: Repository, paths: Paths) -> Dumped:
    """The tree is held frozen until its checkpoint is committed, and only then ended."""
    details = _details(subject)
    log = paths.work / "dump.log"
    saved: list[Checkpoint] = []
    with held(paths.work / "hold", "post-dump") as hold:
        command = subject.command(Paths(paths.images, paths.work, hold.script))
        began = time.monotonic()

        def commit() -> None:
            if subject.way is not None:
                subject.way.frozen()
            # CRIU writes its statistics after the hold only: until here the freeze is at most all of CRIU's work.
            spent_ms = (time.monotonic() - began) * 1000
            new = _new(subject, log.read_text(errors="replace"), details, datetime.now(UTC), spent_ms, spent_ms)
            saved.append(_committed(subject, repository, paths, new))

        _succeeded(subject, follow(command, log, hold=hold, in_hold=commit, meanwhile=load))
    return replace(_result(subject, command), checkpoint=saved[0], tracked=_tracked(subject, paths))


def _tracked(subject: _Subject, paths: Paths) -> Tracked | None:
    if subject.way is None:
        return None
    return subject.way.counted(read_dump_stats((paths.work / "stats-dump").read_bytes()))


def _unreaped(tree: proc.Tree) -> tuple[int, ...]:
    """PIDs that the ended tree still holds: its root waits for its parent, all others for init."""
    others = tuple(pid for pid in tree.pids if pid != tree.root.pid)
    left = proc.wait_until_gone(others, _REAPED_BY_INIT_WITHIN_S)
    within = _REAPED_BY_INIT_WITHIN_S if tree.root.ppid == 1 else _REAPED_BY_PARENT_WITHIN_S
    return (*proc.wait_until_gone((tree.root.pid,), within), *left)


def _succeeded(subject: _Subject, outcome: Outcome) -> Outcome:
    if not outcome.ok:
        # A CRIU that was cut short leaves sockets in repair mode, which nobody else can end.
        dead = outcome.status < 0 and subject.planned.options.tcp == "keep"
        if outcome.status < 0:
            # Nor does a process survive that which was inside a call of CRIU's; its end takes a moment.
            proc.wait_until_gone(subject.seen.tree.pids, _ENDING_S)
        # An interruption that came before CRIU had a session of its own has ended it: then that is the reason.
        with interrupts_let_in():
            # For failures only, as what explains them.
            from crckpt.ops.resources import in_live_tree

            resolved = in_live_tree(subject.seen, inside="pid" in subject.planned.enter)
            state = "; TCP connections may be dead" if dead else ""
            raise explained(outcome, DumpFailed, "the dump", resolved, state, subject.planned.blockers)
    return outcome


def _new(
    subject: _Subject, log: str, details: bytes, created: datetime, frozen_ms: float, dump_ms: float
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
        details=details,
        config_digest=subject.context.config_digest,
        parent=subject.base,
        incremental=subject.base is not None,
    )


def _committed(subject: _Subject, repository: Repository, paths: Paths, new: NewCheckpoint) -> Checkpoint:
    context = subject.context
    # Of a newer CRIU the format may be another: nothing is stored that could not be read again.
    read_inventory((paths.images / "inventory.img").read_bytes())
    checkpoint = ingest(repository, paths.images, new, compress=context.compress, progress=context.progress)
    if subject.way is not None:
        subject.way.committed(checkpoint)
    if subject.request.tag is not None:
        repository.tag(checkpoint.id, subject.request.tag)
    return checkpoint


def _details(subject: _Subject) -> bytes:
    """What CRIU's images lack, and what may be secret: command lines and directories, sizes of append-only files."""
    processes = [
        {
            "pid": process.ns_pids[-1],
            "command_line": proc.command_line(process.pid),
            "directory": proc.working_directory(process.pid),
        }
        for process in subject.seen.tree.processes
    ]
    # A position beyond the end is of a log that was truncated: then the position at the freeze tells nothing.
    appended = {
        found.target: found.size
        for found in subject.seen.descriptors
        if found.is_append_only and found.pos <= found.size
    }
    return json.dumps({"schema": 1, "processes": processes, "append_sizes": appended}, sort_keys=True).encode()
