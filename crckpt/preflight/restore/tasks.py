"""Check the ids of a checkpoint's processes and threads before a restore."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from crckpt.causes import Finding, cause
from crckpt.images.core import STOPPED
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.host import HostState, PlannedRestore

_SHOWN_S: Final = 1


def find_needed_ids(tree: ImageTree) -> frozenset[int]:
    """Return every PID, thread id, group id and session id that must be free for a restore."""
    root = tree.root
    # With --shell-job CRIU puts its own session and group in the place of the shell's. Source: criu/pstree.c:345,
    # prepare_pstree_for_shell_job.
    of_shell = {root.sid, root.pgid} - {root.pid}
    members = {number for process in tree.processes for number in (process.pgid, process.sid)}
    tasks = {*(thread.tid for thread in tree.threads), *(process.pid for process in tree.processes)}
    # 0 is a session or group outside the tree's PID namespace.
    return frozenset(number for number in tasks | (members - of_shell) if number > 0)


def find_taken_ids(host: HostState) -> Iterator[Finding]:
    """Find ids that other tasks of this host have."""
    # A taken PID says enough about the threads of that process.
    taken = {owner.number for owner in host.owners if owner.role == "PID"}
    for owner in (owner for owner in host.owners if owner.role == "PID" or owner.pid not in taken):
        key = "pid-ours" if owner.pid == host.us else "pid-unreaped" if owner.state == "zombie" else "pid-taken"
        pid = "" if owner.pid == owner.number else f" (PID {owner.pid})"
        values = {"kind": owner.role, "pid": owner.number, "comm": owner.comm, "owner": pid, "parent": owner.ppid}
        # Nobody can end the init of a container.
        init = {"advice": "start the container with an init that reaps (docker run --init)"} if owner.ppid == 1 else {}
        yield cause(key).finding(**values, **init)


def judge_tasks(planned: PlannedRestore) -> Iterator[Finding]:
    """Find a stopped process that the kernel would hang up, and what no call can set again.

    That is the CPU clocks, and a root's signal at its parent's end (PR_SET_PDEATHSIG).
    """
    root = planned.tree.root
    # The kernel hangs up the group of a root that loses its parent.
    if planned.is_orphan and not planned.new_pid_namespace and root.sid != root.pid:
        members = (process for process in planned.tree.processes if process.pgid == root.pgid)
        if stopped := next((process for process in members if process.core.state == STOPPED), None):
            yield cause("stopped-job").finding(pid=stopped.pid, comm=stopped.core.comm)
    if planned.cpu_seconds >= _SHOWN_S:
        yield cause("cpu-clocks").finding(time=timedelta(seconds=int(planned.cpu_seconds)))
    signals = {thread.core.parent_death_signal for thread in root.threads} - {0}
    if planned.is_orphan and signals:
        yield cause("parent-death").finding(
            pid=str(root.pid), signal=" ".join(str(number) for number in sorted(signals))
        )
