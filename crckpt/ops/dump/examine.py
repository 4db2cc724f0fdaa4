"""What is dumped, how, and for whom: all that is known, and checked, before anything is touched."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from msgspec import Struct, structs

from crckpt.causes import Finding, cause
from crckpt.criu.command import Paths, dump_command
from crckpt.criu.engine import CriuResult
from crckpt.criu.find import Criu
from crckpt.errors import DumpFailed, HostCannot, UsageError
from crckpt.host import proc
from crckpt.host.disk import space
from crckpt.host.observe import tree
from crckpt.host.process.signals import interrupts_let_in
from crckpt.host.target import resolve
from crckpt.host.target.hold import HeldProcess
from crckpt.model import PAGE_SIZE, JobName
from crckpt.ops.context import Context, as_user, in_pids_of, need_root, need_staging
from crckpt.ops.dump.forecast import is_in_memory
from crckpt.ops.dump.lineage import Copied, Tracked, Way, foreseen
from crckpt.ops.dump.parent_images import Base
from crckpt.ops.dump.request import Request
from crckpt.ops.failures import explained, refused
from crckpt.preflight.dump.files import deleted_bytes
from crckpt.preflight.dump.plan import UNCONDITIONAL, DumpPlan, plan_dump
from crckpt.preflight.dump.space import FreeSpace, find_shortages
from crckpt.preflight.dump.tasks import root_refusal
from crckpt.store import check_name
from crckpt.tracking.preload.library import ENTERED, restarts_calls, untracked_words, why_not_entering
from crckpt.tracking.tracker import untracked, written

_ENDING_S = 0.5

_MOUNTS_DUMPED = "Dumping mountpoints"
"""What CRIU logs when it dumps mounts, as it does if it is elsewhere itself."""
_OF_THE_BASE = ("parent-pages", "parent-directory", "parent-untracked")
"""Causes by which the base is not what CRIU was told, or not what the tree was."""


class Unfit(DumpFailed):
    """The tree did not fit what the dump or round counts from: in full it can be done. `why` says so in a clause."""

    why = ""


class Copying(Struct, frozen=True):
    """The rounds before a freeze, and how many milliseconds that was foreseen and allowed to take, if it was asked."""

    rounds: tuple[Copied, ...]
    foreseen_ms: float | None = None
    max_freeze_ms: float | None = None


class Subject(Struct, frozen=True):
    """What is dumped, how, and for whom: all that is known before anything is touched.

    `way` is None unless the dump is to be incremental, or a base of one; `copying` is what came before the dump. `root`
    holds the root since the first look.
    """

    request: Request
    context: Context
    seen: tree.Observed
    job: JobName
    criu: Criu
    planned: DumpPlan
    way: Way | None = None
    copying: Copying | None = None
    root: HeldProcess | None = None

    @property
    def base(self) -> Base | None:
        """What the dump counts from."""
        return self.way.base if self.way is not None else None

    @property
    def apart(self) -> bool:
        """Whether CRIU runs as another user, or in namespaces of the tree."""
        return bool(self.planned.enter) or self.planned.as_user is not None

    def check_root(self) -> None:
        """Raise DumpFailed if the root's number may have been another process's since the first look."""
        if self.root is not None:
            self.root.check()

    def foreseen(self, *, wanted: bool | None) -> Tracked | None:
        """What a dump now would have to do with the one before it."""
        root, store = self.seen.tree.root, self.context.repository
        return foreseen(root, self.criu.path, store, wanted=wanted, apart=self.apart)

    def command(self, paths: Paths) -> tuple[str, ...]:
        """CRIU's command line for a dump with these paths."""
        root, enter = self.seen.tree.root, self.planned.enter
        pid = root.ns_pids[-1] if "pid" in enter else root.pid
        words = dump_command(
            self.criu.path,
            pid,
            paths,
            self.planned.options,
            leave_running=not self.request.stop,
            unprivileged=self.planned.as_user is not None,
            track=self.way is not None and self.way.tracks,
            base=str(self.base.before) if self.base else None,
        )
        if self.way is not None and self.way.tracks:
            words = (*self.way.environment, *words)
        else:
            words = (*untracked_words(self.criu.path, enter=pid if enter else None), *words)
        user = as_user(self.planned.as_user, self.seen.own_capabilities)
        return (*(in_pids_of(root.pid) if "pid" in enter else ()), *user, *words)

    def check_entered(self, log: str) -> None:
        """Raise DumpFailed if CRIU was to enter the mounts of the tree and, as its `log` says, did not."""
        if self.planned.enter and (ENTERED not in log or _MOUNTS_DUMPED in log):
            raise DumpFailed(
                f"the dump failed: CRIU {self.criu.version} did not enter the mounts of the tree",
                hint="a newer CRIU does: scripts/install-criu",
            )


def _look(request: Request, pid: int, memory: int | None) -> tuple[tree.Observed, JobName]:
    own = proc.read_process(os.getpid())
    process = proc.read_process(pid)
    assert own is not None
    against = root_refusal(process, pid, own.pid, proc.ancestors(own.pid))
    if process is None or against is not None:
        assert against is not None
        raise UsageError(against.what, hint=against.remedy) if process is None else refused((against,))
    job = check_name(request.job, "job") if request.job is not None else _job_of(process.comm)
    if request.tag is not None:
        check_name(request.tag, "tag")
    try:
        return tree.observe(process, own, memory), JobName(job)
    except PermissionError as error:
        hint = "give us the capability CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
        raise HostCannot(f"we may not look into the tree: {error.filename or error.strerror}", hint=hint) from error


def _job_of(comm: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", comm).strip("-._") or "job"


class Examined(Struct, frozen=True):
    """What a dump of a tree would meet, and do: `blockers` stand against it, `plan` has warnings and options."""

    pid: int
    blockers: tuple[Finding, ...]
    plan: DumpPlan
    seen: tree.Observed
    job: JobName
    criu: Criu


def examine(request: Request, context: Context) -> Examined:
    """Look at a tree as `dump` does before it freezes it. Raises UsageError, PreflightRefused, HostCannot."""
    need_root("to look into a process")
    subject = _looked_at(request, context, resolve.resolve(request.target))
    return Examined(
        subject.seen.tree.root.pid, _against(subject), subject.planned, subject.seen, subject.job, subject.criu
    )


def subject_of(request: Request, context: Context, root: HeldProcess, memory: int | None = None) -> Subject:
    """What the request names, process `root`, if nothing stands against a dump.

    `memory` is how many bytes of it are to be dumped; it is measured if it is not known. Raises UsageError,
    PreflightRefused, HostCannot.
    """
    subject = structs.replace(_looked_at(request, context, root.pid, memory), root=root)
    blockers = _against(subject, memory)
    if not (request.preflight or request.dry_run):
        blockers = tuple(found for found in blockers if found.key in UNCONDITIONAL)
    if blockers:
        raise refused(blockers)
    if request.stop and not request.force and subject.planned.untested:
        raise refused(subject.planned.untested)
    return subject


def looked_at_again(subject: Subject, memory: int | None = None) -> Subject:
    """The same tree, way and job as they are some time later; `memory` as for `subject_of`.

    Raises what that raises, and DumpFailed if the tree has ended and another has its PID.
    """
    root = subject.seen.tree.root
    # An exec has changed its name.
    request = structs.replace(subject.request, job=subject.job)
    assert subject.root is not None
    again = subject_of(request, subject.context, subject.root, memory)
    if again.seen.tree.root.start != root.start:
        raise DumpFailed(f"the tree of PID {root.pid} has ended", hint=f"crckpt dump {subject.request.target}")
    return structs.replace(again, way=subject.way, copying=subject.copying)


def _against(subject: Subject, memory: int | None = None) -> tuple[Finding, ...]:
    images = (_images(subject) if memory is None else memory) + deleted_bytes(subject.seen, is_in_memory)
    return (*subject.planned.blockers, *find_shortages(images, _free_space(subject.context)))


def _images(subject: Subject) -> int:
    """About how many bytes CRIU will write: of a tree that is tracked, what was written since, and what is not tracked.

    The latter is shared memory, and what each process has changed of its files' private maps.
    """
    seen, request = subject.seen, subject.request
    told = subject.foreseen(wanted=request.incremental)
    if told is None or not (told.base or told.rounds):
        return seen.memory
    expected = 0
    for pid in seen.tree.pids:
        with suppress(OSError):
            pages = written(told.tracker, pid) + untracked(told.tracker, pid)
            expected += pages * PAGE_SIZE + proc.shared_memory(pid)
    return min(seen.memory, expected)


def _looked_at(request: Request, context: Context, pid: int, memory: int | None = None) -> Subject:
    seen, job = _look(request, pid, memory)
    criu = context.criu()
    planned = plan_dump(
        seen,
        request.tcp,
        stop=request.stop,
        skip_in_flight=request.skip_in_flight,
        locks_by_nftables=criu.locks_by_nftables,
        names={tracer: proc.title(tracer) for tracer in seen.tracers},
        restarts_calls=restarts_calls(),
    )
    if planned.enter and (why := why_not_entering(criu.path)):
        found = cause("cannot-enter").told(pid=seen.tree.root.pid, why=why)
        planned = structs.replace(planned, blockers=(*planned.blockers, found))
    return Subject(request, context, seen, job, criu, planned)


def _free_space(context: Context) -> FreeSpace:
    need_staging(context)
    store = space.existing(context.store)
    directory = context.staging or store
    return FreeSpace(
        directory=str(directory),
        disk=space.free_disk(directory),
        memory=space.free_memory(),
        in_memory=space.is_in_memory(directory),
        beside=directory.stat().st_dev == store.stat().st_dev,
        read_only=next((str(place) for place in (store, directory) if space.is_read_only(place)), ""),
    )


def succeeded(subject: Subject, outcome: CriuResult) -> CriuResult:
    """The outcome of a CRIU that worked on the tree. Raises DumpFailed, explained, if it failed."""
    if not outcome.ok:
        if subject.root is not None and subject.root.is_replaced:
            subject.root.check()
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
            why = _unfit(outcome) if subject.base else ""
            failed = explained(
                outcome, Unfit if why else DumpFailed, "the dump", resolved, state, subject.planned.blockers
            )
            if isinstance(failed, Unfit):
                failed.why = why
            raise failed
    return outcome


def _unfit(outcome: CriuResult) -> str:
    """How the tree does not fit the base, if that is why a CRIU failed that was not cut short."""
    from crckpt.criu.explain import explain

    told = explain(outcome.log)
    if outcome.status < 0 or told.finding is None or told.finding.key not in _OF_THE_BASE:
        return ""
    what = f"of {told.place} " if told.place else ""
    return f"what CRIU found {what}did not fit what was copied before: {told.finding.what}"
