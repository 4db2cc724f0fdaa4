"""Check the namespaces of a tree before a dump."""

from __future__ import annotations

from collections.abc import Iterator

from crckpt.causes import Finding, cause
from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Process

# CRIU refuses these (criu/namespaces.c:460 and 739). crckpt refuses all user namespaces.
_NESTED_REFUSED = ("ipc", "uts", "cgroup", "time", "time_for_children")


def judge_namespaces(observed: Observed) -> Iterator[Finding]:
    """Find containers and namespaces that CRIU cannot save, that crckpt must not enter, or that no restore rebuilds."""
    root = observed.tree.root
    # It is PID 1 of its own namespace. CRIU would dump it, but not what its engine made around it: mounts, network,
    # control groups.
    if root.ns_pids[-1] == 1:
        yield cause("container").finding(pid=root.pid, comm=root.comm)
    else:
        # A session without a leader in its PID namespace (criu/cr-dump.c). Of one in another namespace that is said.
        # A CRIU that enters mounts has crckpt's library, which gives the root's a number (sessions.c); not of zombies.
        has_number = root.ns_sids[-1:] == (0,) and "mnt" in namespaces_to_enter(observed)
        without_leader = (
            process.pid
            for process in observed.tree.processes
            if process.ns_sids[-1:] == (0,)
            and len(process.ns_pids) == len(root.ns_pids)
            and (process.state == "zombie" or not has_number)
        )
        if (pid := next(without_leader, None)) is not None:
            yield cause("session-outside").finding(pid=pid)
    for namespace in observed.foreign_namespaces:
        key = "other-user-namespace" if namespace.kind == "user" else "namespace-owner"
        yield cause(key).finding(pid=namespace.pid, comm=namespace.comm, kind=namespace.kind)
    for process in observed.tree.processes:
        if process.state != "zombie":  # it has left all namespaces
            yield from _find_nested(process, observed)
    # crckpt makes CRIU enter it: CRIU takes its mounts for the host's, and saves none of them.
    if namespaces_to_enter(observed) == ("mnt",):
        yield cause("mount-namespace").finding(pid=root.pid, comm=root.comm)


def namespaces_to_enter(observed: Observed) -> tuple[str, ...]:
    """Return the kinds of namespaces in which CRIU must run."""
    root = dict(observed.tree.root.namespaces)
    return tuple(kind for kind, own in observed.own_namespaces if kind in ("pid", "mnt") and root.get(kind, own) != own)


def shares_namespace(observed: Observed, kind: str) -> bool:
    """Return whether the tree's root is in crckpt's own namespace of this kind."""
    return dict(observed.tree.root.namespaces).get(kind) == dict(observed.own_namespaces).get(kind)


def find_known_namespaces(observed: Observed) -> frozenset[int]:
    """Return the inodes of all namespaces that CRIU can open again: those that a process of the tree is in."""
    # It also saves a descriptor of its own namespace, which it cannot open again (criu/namespaces.c, open_ns_fd).
    processes = (process.namespaces for process in observed.tree.processes)
    return frozenset(inode for kinds in processes for kind, inode in kinds if not kind.endswith("_for_children"))


def _find_nested(process: Process, observed: Observed) -> Iterator[Finding]:
    """Find namespaces of a process that are not the root's. Source: criu/namespaces.c and criu/pstree.c."""
    root = dict(observed.tree.root.namespaces)
    # CRIU saves these and does not make them again: it starts in the root's mount namespace and can make no other.
    unmade = ("mnt", "net") if shares_namespace(observed, "net") else ("mnt",)
    for kind, inode in process.namespaces:
        if root.get(kind.removesuffix("_for_children"), inode) == inode:
            continue
        if kind == "pid":
            yield cause("nested-pid-namespace").finding(pid=process.pid)
        elif kind in _NESTED_REFUSED:
            yield cause("nested-namespace").finding(pid=process.pid, kind=kind.removesuffix("_for_children"))
        elif kind in unmade:
            yield cause("nested-unmade").finding(process=f"process {process.pid} ({process.comm})")
