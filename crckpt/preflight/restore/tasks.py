"""Check the ids of a checkpoint's processes and threads before a restore."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from crckpt.causes import Finding, cause
from crckpt.host.proc import IdUser
from crckpt.images.core import STOPPED
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.host import HostState
from crckpt.preflight.restore.plan import PlannedRestore

_SHOWN_S: Final = 1


def find_needed_ids(tree: ImageTree) -> frozenset[int]:
    """Return every PID, thread id, group id and session id that must be free for a restore."""
    root = tree.root
    # With --shell-job CRIU puts its own session and group in the place of the shell's. Source: criu/pstree.c:345,
    # prepare_pstree_for_shell_job.
    of_shell = {root.sid, root.pgid} - {root.pid}
    members = {number for process in tree.processes for number in (process.pgid, process.sid)}
    tasks = {thread.tid for process in tree.processes for thread in process.threads}
    tasks.update(process.pid for process in tree.processes)
    # 0 is a session or group outside the tree's PID namespace.
    return frozenset(number for number in tasks | (members - of_shell) if number > 0)


def find_taken_ids(host: HostState) -> Iterator[Finding]:
    """Find ids that other tasks of this host have."""
    yield from (_report_taken(owner, host.us) for owner in _one_of_each_process(host.owners))


def find_warnings(planned: PlannedRestore) -> Iterator[Finding]:
    """Find what no call can set again: CPU clocks, and a root's signal at its parent's end (PR_SET_PDEATHSIG)."""
    if planned.cpu_seconds >= _SHOWN_S:
        yield cause("cpu-clocks").finding(time=timedelta(seconds=int(planned.cpu_seconds)))
    root = planned.tree.root
    signals = {thread.core.parent_death_signal for thread in root.threads} - {0}
    if planned.is_orphan and signals:
        yield cause("parent-death").finding(
            pid=str(root.pid), signal=" ".join(str(number) for number in sorted(signals))
        )


def find_hung_up(planned: PlannedRestore) -> Iterator[Finding]:
    """Find a stopped process in the root's group if the tree loses its parent: the kernel hangs up such a group."""
    root = planned.tree.root
    leads = root.sid == root.pid
    if not planned.is_orphan or planned.new_pid_namespace or leads:
        return
    for process in planned.tree.processes:
        if process.pgid == root.pgid and process.core.state == STOPPED:
            yield cause("stopped-job").finding(pid=process.pid, comm=process.core.comm)
            return


def _one_of_each_process(owners: tuple[IdUser, ...]) -> Iterator[IdUser]:
    # A taken PID says enough about the threads of that process.
    taken = {owner.number for owner in owners if owner.role == "PID"}
    yield from (owner for owner in owners if owner.role == "PID" or owner.pid not in taken)


def _report_taken(owner: IdUser, us: int) -> Finding:
    key = "pid-ours" if owner.pid == us else "pid-unreaped" if owner.state == "zombie" else "pid-taken"
    pid = "" if owner.pid == owner.number else f" (PID {owner.pid})"
    # Nobody can end the init of a container.
    init = {"advice": "start the container with an init that reaps (docker run --init)"} if owner.ppid == 1 else {}
    return cause(key).finding(kind=owner.role, pid=owner.number, comm=owner.comm, owner=pid, parent=owner.ppid, **init)
