"""Check the processes and threads of a tree before a dump."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Final

from crckpt.causes import Finding, cause
from crckpt.host.observe.tasks import RESTARTED, LimitKind, ReachedLimit
from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Process

_LIMITS: Final[dict[LimitKind, str]] = {
    "descriptors": "no-free-descriptor",
    "addresses": "no-free-address",
    "maps": "no-free-map",
    "groups": "groups",
    "line": "long-line",
    "signals": "signals-queued",
}
_CAP_SYS_RESOURCE = 24  # linux/capability.h


def root_refusal(process: Process | None, pid: int, own_pid: int, own_ancestors: tuple[int, ...]) -> Finding | None:
    """Return why this process cannot be the root of a dumped tree; None if it can."""
    if process is None:
        return cause("gone").finding(pid=pid)
    values = {"pid": pid, "comm": process.comm, "ppid": process.ppid, "process": f"process {pid} ({process.comm})"}
    # CRIU refuses a tree that it is in (compel/src/lib/infect.c:259), and it descends from crckpt.
    refusals = {
        "init": pid == 1,
        "kernel-thread": process.is_kernel_thread,
        "ourselves": pid == own_pid,
        "ancestor": pid in own_ancestors,
        "thread-leader-gone": process.state == "zombie" and len(process.threads) > 1,
        "zombie": process.state == "zombie",
    }
    return next((cause(key).finding(**values) for key, applies in refusals.items() if applies), None)


def judge_tasks(observed: Observed, names: dict[int, str], *, restarts_calls: bool) -> Iterator[Finding]:
    """Find tasks that CRIU cannot freeze or save, and what a restore changes in them.

    `names`: the names of the tracers, by PID. With `restarts_calls` only the kernel could restart an interrupted call.
    """
    processes = {process.pid: process for process in observed.tree.processes}
    for process in observed.tree.processes:
        yield from _judge_process(process, observed, names)
    for thread in observed.traced_threads:
        yield _report_tracer(processes[thread.pid], thread.tracer, observed, names)
    if _CAP_SYS_RESOURCE not in observed.own_capabilities and user_to_run_as(observed) is None:
        living = (process for process in observed.tree.processes if process.state != "zombie")
        if other := next((process for process in living if _user(process) != (0, 0)), None):
            # Perhaps only its effective or saved user is another, as atd's, or only its group.
            uid, gid = (next((number for number in ids[:3] if number), 0) for ids in (other.uids, other.gids))
            owner = f"user {uid}" if uid else f"group {gid}"
            yield cause("foreign-limits").finding(pid=other.pid, comm=other.comm, owner=owner)
    for pid in sorted(observed.executed_from_memory & processes.keys()):
        yield cause("program-in-memory").finding(pid=pid, comm=processes[pid].comm)
    yield from (
        cause("thread-apart").finding(tid=own.tid, pid=own.pid, comm=processes[own.pid].comm, what=own.what)
        for own in observed.own_of_threads
    )
    for pid, parent in sorted(observed.transient.shared):
        # A parent that waits in vfork cannot be frozen. Others that share memory CRIU refuses (criu/cr-dump.c:668).
        waits = parent in observed.transient.waiting
        yield cause("freeze-timeout").finding() if waits else cause("memory-in-common").finding(pid=pid)
    yield from (cause(f"{common.what}-in-common").finding(pid=common.pid) for common in observed.in_common)
    yield from (_report_limit(processes[reached.pid], reached) for reached in observed.reached_limits)
    # System calls that return EINTR although no signal handler runs.
    for wait in observed.waits:
        if wait.call == RESTARTED:
            yield cause("call-interrupted-again").finding(pid=wait.pid, tid=wait.tid)
        elif not restarts_calls:
            yield cause("call-interrupted").finding(pid=wait.pid, tid=wait.tid, call=wait.call)


def user_to_run_as(observed: Observed) -> tuple[int, int] | None:
    """Return the (uid, gid) that CRIU needs to read the tree's resource limits; None if it needs no other."""
    # prlimit(2), which CRIU calls for each process (criu/cr-dump.c:387): the caller needs CAP_SYS_RESOURCE or the same
    # user.
    users = {_user(process) for process in observed.tree.processes if process.state != "zombie"}
    if _CAP_SYS_RESOURCE in observed.own_capabilities or len(users) != 1:
        return None
    user = users.pop()
    return None if user in (None, (0, 0)) else user


def _judge_process(process: Process, observed: Observed, names: dict[int, str]) -> Iterator[Finding]:
    if process.tracer:
        yield _report_tracer(process, process.tracer, observed, names)
    if process.state == "zombie" and len(process.threads) > 1:  # criu/seize.c:882
        yield cause("thread-leader-gone").finding(process=f"process {process.pid} ({process.comm})")
    # CRIU's own code in a process stops by SIGTRAP, so CRIU refuses a pending one (compel/src/lib/infect.c:321).
    if process.trapped:
        yield cause("breakpoint").finding(tid=process.pid)
    for group in (group for pid, group in observed.frozen if pid == process.pid):
        yield cause("frozen-group").finding(pid=process.pid, group=group.group, thaw=group.thaw)
    # The kernel does not tell whether the time of such a timer is absolute.
    if process.pid in observed.wall_clock_timers:
        yield cause("wall-clock-timer").finding(pid=process.pid, comm=process.comm)
    # The parent would not get the signal that it waits for: CRIU gives all children the same one. 0 is none; a parent
    # outside gets what it gets now.
    if process.ppid in observed.tree.pids and process.exit_signal != signal.SIGCHLD:
        yield cause("exit-signal").finding(pid=process.pid, comm=process.comm, signal=process.exit_signal)


def _report_limit(process: Process, reached: ReachedLimit) -> Finding:
    more = reached.limit + max(reached.limit, 8)
    return cause(_LIMITS[reached.kind]).finding(
        pid=process.pid,
        comm=process.comm,
        process=f"process {process.pid} ({process.comm})",
        used=reached.used,
        limit=reached.limit,
        more=more,
        hard=max(more, reached.hard),
    )


def _report_tracer(process: Process, tracer: int, observed: Observed, names: dict[int, str]) -> Finding:
    name = names.get(tracer, "?")
    # Do not advise to end the root: that would end what is to be saved.
    key = "being-dumped" if name == "criu" else "traced-by-root" if tracer == observed.tree.root.pid else "traced"
    return cause(key).finding(pid=process.pid, comm=process.comm, tracer=tracer, tracer_comm=name)


def _user(process: Process) -> tuple[int, int] | None:
    """Return the process's (uid, gid); None if real, effective and saved ones differ."""
    if len(set(process.uids[:3])) > 1 or len(set(process.gids[:3])) > 1:
        return None
    return process.uids[0], process.gids[0]
