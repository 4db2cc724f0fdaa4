"""Examine a tree before a dump touches it: what is in it, which options CRIU needs, and what prevents a dump."""

from __future__ import annotations

import os
import shlex
from contextlib import closing, nullcontext, suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding, cause, preflight_refusal
from crckpt.criu.find import Criu
from crckpt.errors import CrckptError, DumpFailed, HostCannot, PreflightRefused, TargetNotRunning, UsageError
from crckpt.host import proc
from crckpt.host.disk import space
from crckpt.host.observe import tree
from crckpt.host.proc.status import read_bytes
from crckpt.host.process.cgroups import find_service
from crckpt.host.process.own_limits import read_file_size_limit
from crckpt.host.process.pidfd import HeldProcess
from crckpt.host.program import Program, identify, is_same_program, read_program
from crckpt.images.regfile import RegularFile
from crckpt.model import PAGE_SIZE, JobName
from crckpt.ops.context import Context, require_staging
from crckpt.ops.dump.forecast import is_in_memory, try_growth
from crckpt.ops.dump.launch import pinned_target
from crckpt.ops.dump.lineage import open_lineage
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.last_checkpoint import LastCheckpoint
from crckpt.ops.lazy.family import wait_until_complete
from crckpt.preflight.dump.checks import UNCONDITIONAL, UNTESTED_KIND, DumpPlan, plan_dump
from crckpt.preflight.dump.descriptors import outside_terminals
from crckpt.preflight.dump.files import count_deleted_bytes
from crckpt.preflight.dump.space import FreeSpace, depends_on_growth, find_risks, find_shortages
from crckpt.preflight.dump.tasks import root_refusal
from crckpt.store import Checkpoint, Repository, check_name, check_note
from crckpt.tracking.choose_tracker import count_untracked, count_written
from crckpt.tracking.preload.library import ENTERED, find_enter_refusal, lets_programs_take_over, restarts_calls

# CRIU logs this when it dumps mounts, which it does only outside of their namespace.
_MOUNTS_DUMPED = "Dumping mountpoints"


class DumpTarget(Struct, frozen=True):
    """The tree to dump, as it was observed, and how it was judged.

    `root` holds the root's process since before that, if it is to be dumped; `program` is what it runs.
    """

    request: DumpRequest
    context: Context
    observed: tree.Observed
    job: JobName
    criu: Criu
    plan: DumpPlan
    root: HeldProcess | None = None
    program: Program = Program("")

    @property
    def pid(self) -> int:
        """The root's PID."""
        return self.observed.tree.root.pid

    @property
    def root_has_ended(self) -> bool:
        """Whether the root has ended since it was held."""
        return self.root is not None and not self.root.is_alive

    def check_root(self) -> None:
        """Raise TargetNotRunning if the root's PID may have been another process's since it was held."""
        if self.root is not None:
            self.root.check()

    def check_entered(self, log: str) -> None:
        """Raise DumpFailed if CRIU was to enter the mounts of the tree and, as its `log` says, did not."""
        if self.plan.enter and (ENTERED not in log or _MOUNTS_DUMPED in log):
            raise DumpFailed(
                f"the dump failed: CRIU {self.criu.version} did not enter the mounts of the tree",
                hint="install a newer CRIU: crckpt install-criu",
            )


def examine(request: DumpRequest, context: Context) -> DumpTarget:
    """Examine a tree; what prevents a dump is in its plan. Its root is not held any more.

    Raises UsageError, TargetNotRunning, PreflightRefused, HostCannot.
    """
    with pinned_target(request, context) as (request, root):
        return replace(observe_target(request, context, root), root=None)


def examine_target(
    request: DumpRequest, context: Context, root: HeldProcess, memory: int | None = None, *, stores: bool = True
) -> DumpTarget:
    """Examine the tree below `root`. Raises PreflightRefused if something prevents a dump.

    Raises UsageError, TargetNotRunning, HostCannot.

    `memory` is how many bytes of it will be dumped, None to measure it. `stores`: also a checkpoint is stored.
    """
    wait_until_complete(root.pid, context.say)
    checks = request.preflight or request.dry_run
    # The warnings of a dump are shown when it is done: then it has fitted.
    target = observe_target(request, context, root, memory, stores=stores, checks=checks, warns=request.dry_run)
    # Without a preflight CRIU finds the others itself, and refuses the dump.
    if blockers := tuple(found for found in target.plan.blockers if checks or found.key in UNCONDITIONAL):
        raise preflight_refusal(blockers)
    if request.rehearse and outside_terminals(target.observed):
        raise preflight_refusal((cause("terminal-held").finding(),))
    # CRIU dumps some things that it cannot restore: the tree would be ended and lost.
    if request.stop and not request.force and target.plan.untested:
        raise preflight_refusal(target.plan.untested)
    return target


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
        raise TargetNotRunning(
            f"the tree of PID {root.pid} has ended", hint=f"crckpt dump {shlex.quote(target.request.target)}"
        )
    return again


def observe_target(
    request: DumpRequest,
    context: Context,
    root: HeldProcess,
    memory: int | None = None,
    *,
    stores: bool = True,
    checks: bool = True,
    warns: bool = True,
) -> DumpTarget:
    """Observe the tree below `root`, and judge whether it can be dumped; `memory` and `stores` as `examine_target`.

    `checks`: whether what is stored fits; `warns`: also of what may not fit.
    """
    own, process = proc.read_process(os.getpid()), proc.read_process(root.pid)
    assert own is not None
    against = root_refusal(process, root.pid, own.pid, proc.ancestors(own.pid))
    if process is None or against is not None:
        assert against is not None
        has_ended = process is None or (process.state == "zombie" and len(process.threads) <= 1)
        raise TargetNotRunning(against.what, hint=against.remedy) if has_ended else preflight_refusal((against,))
    program = read_program(root.pid, process.comm, find_service(root.pid))
    job = JobName(check_name(request.job if request.job is not None else program.name, "job"))
    # Check tag and note here, though they are needed last: a bad one must be found before the freeze.
    if request.tag is not None:
        check_name(request.tag, "tag")
    if request.note is not None:
        check_note(request.note)
    try:
        observed = tree.observe(process, own, memory)
    except PermissionError as error:
        hint = "run crckpt with the capability CAP_SYS_PTRACE (in a container: docker run --cap-add SYS_PTRACE ...)"
        raise HostCannot(
            f"crckpt has no permission to read the tree: {error.filename or error.strerror}", hint=hint
        ) from error
    criu = context.criu()
    plan = plan_dump(
        observed,
        request.tcp,
        stop=request.stop,
        skip_in_flight=request.skip_in_flight,
        locks_by_nftables=criu.locks_by_nftables,
        names={tracer: proc.title(tracer) for tracer in observed.tracers},
        restarts_calls=restarts_calls(),
    )
    blockers, warnings = list(plan.blockers), list(plan.warnings)
    if plan.enter and (why := find_enter_refusal(criu.path)):
        blockers.append(cause("cannot-enter").finding(pid=process.pid, why=why))
    if lets_programs_take_over(criu.version) and any(each.uids[1] for each in observed.tree.processes):
        warnings.append(cause("criu-unsafe").finding(version=criu.version))
    if request.rehearse:
        # The rehearsal shows whether these come back.
        warnings = [found for found in warnings if found.key != UNTESTED_KIND]
    plan = replace(plan, blockers=tuple(blockers), warnings=tuple(warnings))
    target = DumpTarget(request, context, observed, job, criu, plan, root, program)
    return _judge_space(target, memory, stores=stores, warns=warns) if checks else target


def _judge_space(target: DumpTarget, memory: int | None, *, stores: bool, warns: bool) -> DumpTarget:
    """Return the target; its plan says what does not fit, and if it `warns` what may not."""
    observed, context, plan, images = target.observed, target.context, target.plan, memory
    if images is None:
        wanted, apart = target.request.incremental, plan.runs_apart
        lineage = open_lineage(observed.tree.root, target.criu.path, wanted=wanted, apart=apart, starts=False)
        with closing(lineage) if lineage is not None else nullcontext():
            summary = None if lineage is None else lineage.predict(context.repository, target.criu.path)
        # A full dump writes all memory that is in no file.
        images = observed.memory
        if summary is not None and (summary.base or summary.rounds):
            # What was written since the base; and shared memory, and what each process has changed of its files'
            # private maps, which are not tracked.
            expected = 0
            for pid in observed.tree.pids:
                with suppress(OSError):
                    pages = count_written(summary.tracker, pid) + count_untracked(summary.tracker, pid)
                    expected += pages * PAGE_SIZE + read_bytes(pid, "RssShmem")
            images = min(images, expected)
    images += count_deleted_bytes(observed, is_in_memory)
    free, growth = read_free_space(context), None
    is_tight = stores and not free.read_only and depends_on_growth(images, free)
    # After rounds a trial would only let the tree write more.
    if is_tight and memory is None and not plan.blockers:
        growth = try_growth(observed, target.job, context, images)
    blockers = (*plan.blockers, *find_shortages(images, free, growth))
    risks = find_risks(images, free, growth) if is_tight and warns and not blockers else ()
    return replace(target, plan=replace(plan, blockers=blockers, warnings=(*plan.warnings, *risks)))


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


_ROOT = 0


def check_job(target: DumpTarget, newest: LastCheckpoint | None, command: str = "dump") -> tuple[Finding, ...]:
    """Check the last checkpoint of the target's job, if it has one. `command` is the one that the hint says to type.

    Raises PreflightRefused if it is of another program, unless the request allows that; UsageError if the user named no
    job, and it is of another user's program. Returns a warning if it is of another process that runs or ran next to the
    target. A program that was restored, or started anew when the first one had ended, is no other one.
    """
    if newest is None or newest.details is None:
        return ()
    last, details, tree_root = newest.checkpoint, newest.details, target.observed.tree.root
    named = shlex.quote(target.request.target)
    typed = f"crckpt {command} {named}"
    # A program that calls itself `postgres` would become the newest checkpoint of that job, which a restore takes, and
    # for which a cleanup removes others. Root's own programs may: root reads and writes all.
    is_default = target.request.job is None and set(tree_root.uids) != {_ROOT}
    uids = _find_root(last, details).get("uids", ()) if is_default else ()
    if uids and tuple(uids[:2]) != tree_root.uids[:2]:
        raise UsageError(
            f"process {tree_root.pid} ({tree_root.comm}) belongs to user {tree_root.uids[0]}, but the job {target.job} "
            f"has checkpoints of a program of user {uids[0]}",
            hint=f"choose another job: {typed} JOB",
        )
    now = tree_root.identity
    before = None if details.get("root") is None else msgspec.convert(details["root"], proc.Identity)
    if not target.request.other_program:
        program, ours = read_recorded_program(newest.repository, last, details), target.program
        # A program that was started by a relative path, and then changes its directory, seems to be another one.
        is_same_root = program.executable == ours.executable and before == now
        if not is_same_root and not is_same_program(program, ours):
            # The code of two programs is not shown.
            runs = ours.title if ours.title != program.title else f"{program.called} with other code"
            raise PreflightRefused(
                f"the job {target.job} is of another program: its last checkpoint, {last.short_id}, is of "
                f"{program.title}, but PID {target.pid} runs {runs}",
                hint=f"choose another name: {typed} NAME; or give {target.job} to this program: {typed} {target.job} "
                "--job-of-another-program",
            )
    dumped_at = details.get("uptime_ticks")
    if before is None or before.boot_id != now.boot_id or before == now:
        return ()
    if not before.keeps_pid and (dumped_at is None or now.start > dumped_at):
        return ()
    return (cause("job-shared").finding(job=target.job, checkpoint=last.short_id, pid=before.pid, target=named),)


def read_recorded_program(repository: Repository, checkpoint: Checkpoint, details: dict[str, Any]) -> Program:
    """Read the program of the root of a checkpoint, as far as it is known."""
    if details.get("program") is not None:
        return msgspec.convert(details["program"], Program)
    # Older versions recorded command lines only, and an imported checkpoint has not even these.
    from crckpt.ops.inspect.images import read_image_tree

    executable = ""
    with suppress(CrckptError, OSError):
        exe = read_image_tree(repository, checkpoint).root.exe
        executable = exe.path if isinstance(exe, RegularFile) else ""
    known = _find_root(checkpoint, details)
    words, directory = known.get("command_line", ()), known.get("directory", "")
    return identify(executable, words, directory, comm=checkpoint.tree[0].comm)


def _find_root(checkpoint: Checkpoint, details: dict[str, Any]) -> dict[str, Any]:
    """Find the root in the details; empty if they do not have it."""
    root = checkpoint.tree[0].pid
    return next((entry for entry in details.get("processes", ()) if entry["pid"] == root), {})
