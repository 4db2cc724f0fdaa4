"""Examine a tree before a dump touches it: what is in it, which options CRIU needs, and what prevents a dump."""

from __future__ import annotations

import os
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding, cause
from crckpt.criu.command import Paths, dump_command
from crckpt.criu.find import Criu
from crckpt.errors import DumpFailed, HostCannot, TargetNotRunning
from crckpt.host import proc
from crckpt.host.disk import space
from crckpt.host.observe import tree
from crckpt.host.process.own_limits import read_file_size_limit
from crckpt.host.program.live import read_program
from crckpt.host.program.program import Program
from crckpt.host.program.unit import find_service
from crckpt.host.target.pinned import PinnedProcess
from crckpt.model import PAGE_SIZE, JobName
from crckpt.ops.context import Context, pid_namespace_words, require_staging, setpriv_words
from crckpt.ops.dump.find_target import pinned_target
from crckpt.ops.dump.forecast import is_in_memory
from crckpt.ops.dump.lineage import Lineage, predict_lineage
from crckpt.ops.dump.parent_images import ParentImages
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.dump.result import LineageSummary, PreCopyResult
from crckpt.ops.failures import preflight_refusal
from crckpt.ops.lazy.marks import wait_until_complete
from crckpt.preflight.dump.checks import UNCONDITIONAL, DumpPlan, plan_dump
from crckpt.preflight.dump.files import count_deleted_bytes
from crckpt.preflight.dump.space import FreeSpace, Growth, depends_on_growth, find_risks, find_shortages
from crckpt.preflight.dump.tasks import root_refusal
from crckpt.preflight.dump.terminals import outside_terminals
from crckpt.store import check_name, check_note
from crckpt.tracking.choose_tracker import count_untracked, count_written
from crckpt.tracking.preload.library import (
    ENTERED,
    dump_words,
    find_enter_refusal,
    lets_programs_take_over,
    restarts_calls,
)

# CRIU logs this when it dumps mounts, which it does only outside of their namespace.
_MOUNTS_DUMPED = "Dumping mountpoints"


class DumpTarget(Struct, frozen=True):
    """The tree to dump, as it was examined, and how to dump it.

    `tracked_before` is the root that the job's last checkpoint names as tracked. `root` holds the root's process since
    before that; `program` is what it runs. `lineage` is None unless the dump is to be incremental, or the base of one;
    `pre_copy` are the rounds before it.
    """

    request: DumpRequest
    context: Context
    observed: tree.Observed
    job: JobName
    criu: Criu
    plan: DumpPlan
    lineage: Lineage | None = None
    pre_copy: PreCopyResult | None = None
    root: PinnedProcess | None = None
    tracked_before: proc.Identity | None = None
    program: Program = Program("")

    @property
    def pid(self) -> int:
        """The root's PID."""
        return self.observed.tree.root.pid

    @property
    def parent(self) -> ParentImages | None:
        """The checkpoint that the dump counts from."""
        return self.lineage.parent if self.lineage is not None else None

    @property
    def runs_apart(self) -> bool:
        """Whether CRIU runs as another user, or in namespaces of the tree."""
        return bool(self.plan.enter) or self.plan.as_user is not None

    @property
    def root_has_ended(self) -> bool:
        """Whether the root has ended since it was held."""
        return self.root is not None and not self.root.is_alive

    def check_root(self) -> None:
        """Raise TargetNotRunning if the root's PID may have been another process's since it was held."""
        if self.root is not None:
            self.root.check()

    def predict_lineage(self, *, wanted: bool | None) -> LineageSummary | None:
        """Predict what a dump would count from now."""
        root, store = self.observed.tree.root, self.context.repository
        return predict_lineage(
            root, self.criu.path, store, wanted=wanted, apart=self.runs_apart, before=self.tracked_before
        )

    def command(self, paths: Paths) -> tuple[str, ...]:
        """CRIU's command line for a dump with these paths."""
        root, enter = self.observed.tree.root, self.plan.enter
        # A CRIU in the tree's PID namespace knows the root by the number that it has there.
        pid = root.ns_pids[-1] if "pid" in enter else root.pid
        words = dump_command(
            self.criu.path,
            pid,
            paths,
            self.plan.options,
            leave_running=not self.request.stop,
            unprivileged=self.plan.as_user is not None,
            track=self.lineage is not None and self.lineage.tracks,
            base=str(self.parent.directory) if self.parent else None,
        )
        if self.lineage is not None and self.lineage.tracks:
            words = (*self.lineage.environment, *words)
        else:
            words = (*dump_words(self.criu.path, enter=pid if enter else None), *words)
        user = setpriv_words(self.plan.as_user, self.observed.own_capabilities)
        return (*(pid_namespace_words(root.pid) if "pid" in enter else ()), *user, *words)

    def check_entered(self, log: str) -> None:
        """Raise DumpFailed if CRIU was to enter the mounts of the tree and, as its `log` says, did not."""
        if self.plan.enter and (ENTERED not in log or _MOUNTS_DUMPED in log):
            raise DumpFailed(
                f"the dump failed: CRIU {self.criu.version} did not enter the mounts of the tree",
                hint="install a newer CRIU: crckpt install-criu",
            )


class Examination(Struct, frozen=True):
    """The facts that `doctor TARGET` needs: `blockers` prevent a dump; `plan` has warnings and options."""

    pid: int
    blockers: tuple[Finding, ...]
    plan: DumpPlan
    observed: tree.Observed
    job: JobName
    criu: Criu


def examine(request: DumpRequest, context: Context) -> Examination:
    """Examine a tree, and report what prevents a dump.

    Raises UsageError, TargetNotRunning, PreflightRefused, HostCannot.
    """
    with pinned_target(request, context) as (request, root):
        target = _check_space(_observe_target(request, context, root.pid))
    plan = target.plan
    return Examination(target.pid, plan.blockers, plan, target.observed, target.job, target.criu)


def look_at_target(request: DumpRequest, context: Context, root: PinnedProcess) -> DumpTarget:
    """Examine the tree below `root`; what prevents a dump is in its plan.

    Raises UsageError, TargetNotRunning, HostCannot.
    """
    wait_until_complete(root.pid, context.say)
    return replace(_check_space(_observe_target(request, context, root.pid)), root=root)


def examine_target(
    request: DumpRequest, context: Context, root: PinnedProcess, memory: int | None = None, *, stores: bool = True
) -> DumpTarget:
    """Examine the tree below `root`. Raises PreflightRefused if something prevents a dump.

    Raises UsageError, TargetNotRunning, HostCannot.

    `memory` is how many bytes of it will be dumped, None to measure it. `stores`: also a checkpoint is stored.
    """
    wait_until_complete(root.pid, context.say)
    target = replace(_observe_target(request, context, root.pid, memory), root=root)
    if request.preflight or request.dry_run:
        # The warnings of a dump are shown when it is done: then it has fitted.
        target = _check_space(target, memory, stores=stores, warns=request.dry_run)
        blockers = target.plan.blockers
    else:
        # CRIU finds the others itself, and refuses the dump.
        blockers = tuple(found for found in target.plan.blockers if found.key in UNCONDITIONAL)
    if blockers:
        raise preflight_refusal(blockers)
    if request.rehearse:
        target = _plan_rehearsal(target)
    # CRIU dumps some things that it cannot restore: the tree would be ended and lost.
    if request.stop and not request.force and target.plan.untested:
        raise preflight_refusal(target.plan.untested)
    return target


def _plan_rehearsal(target: DumpTarget) -> DumpTarget:
    """Leave out the findings that a rehearsal settles. Raises PreflightRefused if the tree cannot be rehearsed."""
    if outside_terminals(target.observed):
        raise preflight_refusal((replace(cause("terminal-rehearsed").finding(), remedy="leave out --rehearse"),))
    plan = target.plan
    untested, warnings = (
        tuple(found for found in findings if found.key != "untested-kind")
        for findings in (plan.untested, plan.warnings)
    )
    return replace(target, plan=replace(plan, untested=untested, warnings=warnings))


def examine_again(target: DumpTarget, memory: int | None = None) -> DumpTarget:
    """The same target, as its tree is now; `memory` as for `examine_target`.

    Raises what that raises, TargetNotRunning also if another tree has its PID now.
    """
    root = target.observed.tree.root
    # An exec may have changed the name of the program, which is the default name of the job.
    request = replace(target.request, job=target.job)
    assert target.root is not None
    again = examine_target(request, target.context, target.root, memory)
    if again.observed.tree.root.identity != root.identity:
        raise TargetNotRunning(f"the tree of PID {root.pid} has ended", hint=f"crckpt dump {target.request.target}")
    before = target.tracked_before
    return replace(again, lineage=target.lineage, pre_copy=target.pre_copy, tracked_before=before)


def _observe_target(request: DumpRequest, context: Context, pid: int, memory: int | None = None) -> DumpTarget:
    observed, job, program = _observe(request, pid, memory)
    criu = context.criu()
    planned = plan_dump(
        observed,
        request.tcp,
        stop=request.stop,
        skip_in_flight=request.skip_in_flight,
        locks_by_nftables=criu.locks_by_nftables,
        names={tracer: proc.title(tracer) for tracer in observed.tracers},
        restarts_calls=restarts_calls(),
    )
    if planned.enter and (why := find_enter_refusal(criu.path)):
        found = cause("cannot-enter").finding(pid=observed.tree.root.pid, why=why)
        planned = replace(planned, blockers=(*planned.blockers, found))
    if lets_programs_take_over(criu.version) and any(process.uids[1] for process in observed.tree.processes):
        found = cause("criu-unsafe").finding(version=criu.version)
        planned = replace(planned, warnings=(*planned.warnings, found))
    return DumpTarget(request, context, observed, job, criu, planned, program=program)


def _observe(request: DumpRequest, pid: int, memory: int | None) -> tuple[tree.Observed, JobName, Program]:
    own = proc.read_process(os.getpid())
    process = proc.read_process(pid)
    assert own is not None
    against = root_refusal(process, pid, own.pid, proc.ancestors(own.pid))
    if process is None or against is not None:
        assert against is not None
        has_ended = process is None or (process.state == "zombie" and len(process.threads) <= 1)
        raise TargetNotRunning(against.what, hint=against.remedy) if has_ended else preflight_refusal((against,))
    program = read_program(pid, process.comm, find_service(pid))
    job = check_name(request.job if request.job is not None else program.name, "job")
    # Check tag and note here, though they are needed last: a bad one must be found before the freeze.
    if request.tag is not None:
        check_name(request.tag, "tag")
    if request.note is not None:
        check_note(request.note)
    try:
        return tree.observe(process, own, memory), JobName(job), program
    except PermissionError as error:
        hint = "run crckpt with the capability CAP_SYS_PTRACE (in a container: docker run --cap-add SYS_PTRACE ...)"
        raise HostCannot(
            f"crckpt has no permission to read the tree: {error.filename or error.strerror}", hint=hint
        ) from error


def _check_space(
    target: DumpTarget, memory: int | None = None, *, stores: bool = True, warns: bool = True
) -> DumpTarget:
    """Add to the target's plan what does not fit; if it `warns`, also what may not fit. Else as `examine_target`."""
    images = _estimate_images(target) if memory is None else memory
    images += count_deleted_bytes(target.observed, is_in_memory)
    free, plan = read_free_space(target.context), target.plan
    is_tight = stores and not free.read_only and depends_on_growth(images, free)
    # After rounds a trial would only let the tree write more.
    growth = _try_growth(target, images) if is_tight and memory is None and not plan.blockers else None
    blockers = (*plan.blockers, *find_shortages(images, free, growth))
    risks = find_risks(images, free, growth) if is_tight and warns and not blockers else ()
    return replace(target, plan=replace(plan, blockers=blockers, warnings=(*plan.warnings, *risks)))


def _try_growth(target: DumpTarget, images: int) -> Growth | None:
    # Rarely needed and slow to import: a trial stores memory.
    from crckpt.ops.dump.growth import try_growth

    return try_growth(target.observed, target.job, target.context, images)


def _estimate_images(target: DumpTarget) -> int:
    """About how many bytes CRIU will write. Of a tracked tree: what was written since the base, and is not tracked.

    Not tracked are shared memory, and what each process has changed of its files' private maps.
    """
    observed = target.observed
    summary = target.predict_lineage(wanted=target.request.incremental)
    # A full dump writes all memory that is in no file.
    if summary is None or not (summary.base or summary.rounds):
        return observed.memory
    expected = 0
    for pid in observed.tree.pids:
        with suppress(OSError):
            pages = count_written(summary.tracker, pid) + count_untracked(summary.tracker, pid)
            expected += pages * PAGE_SIZE + proc.read_shared_memory(pid)
    return min(observed.memory, expected)


def read_free_space(context: Context) -> FreeSpace:
    """Read how much space a dump has."""
    require_staging(context)
    store = space.nearest_existing(context.store)
    directory = context.staging or store
    return FreeSpace(
        directory=str(directory),
        disk=space.free_disk(directory),
        memory=space.free_memory(),
        in_memory=space.is_in_memory(directory),
        shares_disk=directory.stat().st_dev == store.stat().st_dev,
        # A store below a file is refused when it is opened.
        read_only=next(
            (str(place) for place in (store, directory) if place.is_dir() and not space.is_writable(place)), ""
        ),
        store=str(store),
        store_disk=space.free_disk(store),
        largest_file=read_file_size_limit(),
    )
