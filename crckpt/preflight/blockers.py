"""What stands against a dump of a tree. No sentence is here: the catalogue has them."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Container, Iterable, Iterator

from crckpt.causes import Finding, cause
from crckpt.host.observe.pipes import pipes, reads
from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Descriptor, Process
from crckpt.host.proc.maps import Mapping

_NESTED_REFUSED = ("pid", "ipc", "uts", "cgroup", "time", "time_for_children")
_CAP_SYS_RESOURCE = 24  # linux/capability.h
_MOST_PIPES = 1024
"""Of pipes that the tree reads, and as many named ones: NR_PIPES_WITH_DATA, criu/include/pipes.h. Empty ones count."""
_ANONYMOUS = ("bpf-map", "eventfd", "eventpoll", "fanotify", "inotify", "pidfd", "signalfd", "timerfd")
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET)
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_PROTOCOLS = (
    *(socket.IPPROTO_IP, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_UDPLITE),
    *(socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6),
)
"""Of internet sockets that are not raw; source: criu/sk-inet.c, can_dump_ipproto."""
_TUN = (10, 200)
_AUTOFS = (10, 235)
_MEMORY_DEVICES = 1
_TERMINALS = (188, 204, *range(128, 144))
_CONSOLES = {5: range(3), 4: range(1, 64)}
"""Major numbers of terminals, and of those that are not all terminals the minor ones; source: get_tty_driver."""
_OF_PLUGINS = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")
"""Devices that CRIU saves if it has their plugin."""
_MASTERS = ("/dev/ptmx", "/dev/pts/ptmx")
_BPF_MAP = re.compile(r"^map_type:\t(\d+)$", re.MULTILINE)
_BPF_MAP_SAVED = re.compile(r"^map_type:\t[12]$", re.MULTILINE)
"""A hash or an array: enum bpf_map_type, linux/bpf.h."""
_NAMESPACE = re.compile(r"(?:cgroup|ipc|mnt|net|pid|time|user|uts):\[(\d+)\]")


UNCONDITIONAL = frozenset({"other-user-namespace", "namespace-owner", "cannot-enter"})
"""Keys of blockers that --no-preflight does not lift: without them the tree could gain rights, or be lost."""


def blockers(
    seen: Observed, tcp: str | None, names: dict[int, str], *, locks_by_nftables: bool, skip_in_flight: bool = False
) -> Iterator[Finding]:
    """All of them, some twice.

    `names` says what the tracers' PIDs are called; `tcp` and `skip_in_flight` are what the user chose.
    """
    if seen.tree.root.ns_pids[-1] == 1:
        yield cause("container").told(pid=seen.tree.root.pid, comm=seen.tree.root.comm)
    yield from _foreign_namespaces(seen)
    for process in seen.tree.processes:
        yield from _not_frozen(process, seen, names)
        yield from _nested(process, seen)
    yield from _traced_threads(seen, names)
    yield from _foreign_limits(seen)
    for pid, parent in sorted(seen.passing.shared):
        waits = parent in seen.passing.waiting
        yield cause("freeze-timeout").told() if waits else cause("memory-in-common").told(pid=pid)
    for found in seen.descriptors:
        yield from _unsaved(found, seen)
    yield from _too_many_pipes(seen)
    for mapping in seen.mappings:
        yield from _unmapped(mapping, seen)
    yield from _unsaved_files(seen)
    yield from _unsaved_sockets(seen)
    if len({found.target for found in outside_terminals(seen) if found.target.startswith("/dev/pts/")}) > 1:
        yield cause("terminal-outside").told()
    yield from _connections(seen, tcp, locks_by_nftables=locks_by_nftables, skip_in_flight=skip_in_flight)


def _connections(
    seen: Observed, tcp: str | None, *, locks_by_nftables: bool, skip_in_flight: bool
) -> Iterator[Finding]:
    if seen.passing.queues and not skip_in_flight:
        yield cause("tcp-in-flight").told()
    if tcp is None:
        for link in seen.connections:
            yield cause("tcp").told(pid=link.pid, fd=link.fd, local=link.local, remote=link.remote, status=link.status)
    if tcp == "keep":
        for held in seen.sockets:
            if held.layer:
                yield cause("tcp-layer").told(pid=held.pid, fd=held.fd, layer=held.layer)
    if tcp == "keep" and seen.connections and not locks_by_nftables:
        yield cause("network-lock").told()


def user_to_run_as(seen: Observed) -> tuple[int, int] | None:
    """Limits of another user's process are readable with CAP_SYS_RESOURCE or as that user (prlimit(2))."""
    users = {_user(process) for process in seen.tree.processes if process.state != "zombie"}
    if _CAP_SYS_RESOURCE in seen.own_capabilities or len(users) != 1:
        return None
    user = users.pop()
    return None if user in (None, (0, 0)) else user


def outside_terminals(seen: Observed) -> tuple[Descriptor, ...]:
    """Descriptors of terminals whose other side the tree does not hold.

    A console is opened by its name again, and /dev/tty in its session: these are outside if that session is. A pty that
    was deleted has no other side any more.
    """
    sessions = {process.pid: process.sid for process in seen.tree.processes}
    inside = {
        f"/dev/pts/{line.split()[1]}"
        for found in seen.descriptors
        if found.target in _MASTERS
        for line in found.info.splitlines()
        if line.startswith("tty-index:")
    }
    return tuple(
        found
        for found in seen.descriptors
        if found.target not in _MASTERS
        and (
            _is_pty_outside(found.target, inside)
            if found.target.startswith("/dev/pts/")
            else found.target.startswith(("/dev/tty", "/dev/console")) and sessions[found.pid] not in sessions
        )
    )


def _is_pty_outside(path: str, inside: Container[str]) -> bool:
    return not path.endswith(" (deleted)") and path not in inside


def shares(seen: Observed, kind: str) -> bool:
    """Whether the tree lives in a namespace of ours, and CRIU, which is started there, does too."""
    return dict(seen.tree.root.namespaces).get(kind) == dict(seen.own_namespaces).get(kind)


def _not_frozen(process: Process, seen: Observed, names: dict[int, str]) -> Iterator[Finding]:
    if process.tracer:
        yield _traced(process, process.tracer, seen, names)
    if process.state == "zombie" and len(process.threads) > 1:
        yield cause("thread-leader-gone").told()
    if process.trapped:
        yield cause("breakpoint").told(tid=process.pid)
    for frozen in (frozen for pid, frozen in seen.frozen if pid == process.pid):
        yield cause("frozen-group").told(pid=process.pid, group=frozen.group, thaw=frozen.thaw)


def _foreign_namespaces(seen: Observed) -> Iterator[Finding]:
    for found in seen.foreign_namespaces:
        key = "other-user-namespace" if found.kind == "user" else "namespace-owner"
        yield cause(key).told(pid=found.pid, comm=found.comm, kind=found.kind)


def _traced_threads(seen: Observed, names: dict[int, str]) -> Iterator[Finding]:
    processes = {process.pid: process for process in seen.tree.processes}
    for thread in seen.traced_threads:
        yield _traced(processes[thread.pid], thread.tracer, seen, names)


def _traced(process: Process, by: int, seen: Observed, names: dict[int, str]) -> Finding:
    tracer = names.get(by, "?")
    # To end the root would end what is to be saved.
    key = "being-dumped" if tracer == "criu" else "traced-by-root" if by == seen.tree.root.pid else "traced"
    return cause(key).told(pid=process.pid, comm=process.comm, tracer=by, tracer_comm=tracer)


def _nested(process: Process, seen: Observed) -> Iterator[Finding]:
    """Source: criu/namespaces.c, and of namespaces that are saved but not made again criu/pstree.c.

    CRIU is started in the root's mount namespace, so that it can make no other.
    """
    if process.state == "zombie":
        return
    root = dict(seen.tree.root.namespaces)
    unmade = ("mnt", "net") if shares(seen, "net") else ("mnt",)
    for kind, inode in process.namespaces:
        if root.get(kind.removesuffix("_for_children"), inode) == inode:
            continue
        if kind in _NESTED_REFUSED:
            yield cause("nested-namespace").told(pid=process.pid, kind=kind.removesuffix("_for_children"))
        elif kind in unmade:
            yield cause("nested-unmade").told(process=f"process {process.pid} ({process.comm})")


def _foreign_limits(seen: Observed) -> Iterator[Finding]:
    if _CAP_SYS_RESOURCE in seen.own_capabilities or user_to_run_as(seen) is not None:
        return
    for process in seen.tree.processes:
        if process.state != "zombie" and _user(process) != (0, 0):
            yield cause("foreign-limits").told(pid=process.pid, comm=process.comm, uid=process.uids[0])
            return


def _user(process: Process) -> tuple[int, int] | None:
    """The process's (uid, gid); None if real, effective and saved ones differ."""
    if len(set(process.uids[:3])) > 1 or len(set(process.gids[:3])) > 1:
        return None
    return process.uids[0], process.gids[0]


def _unsaved(found: Descriptor, seen: Observed) -> Iterator[Finding]:
    """Source: criu/files.c, dump_one_file. A BPF map can be saved by a CRIU that was built for it."""
    kind, _, name = found.target.partition(":")
    if found.target == "anon_inode:[io_uring]":
        yield cause("io-uring").told()
    elif found.target == "anon_inode:[pidfd]":
        yield from _unsaved_pidfd(found, seen.strangers)
    elif found.target == "anon_inode:bpf-map" and not _BPF_MAP_SAVED.search(found.info):
        told = _BPF_MAP.search(found.info)
        yield cause("bpf-map").told(**({"type": told[1]} if told else {}))
    elif kind == "anon_inode" and name.strip("[]") not in _ANONYMOUS:
        yield cause("device").told(fd=found.fd, what=f"anon {found.target}")
    elif stat.S_ISFIFO(found.mode) and found.flags & os.O_DIRECT:
        # A named pipe CRIU saves, and cannot open it so again.
        yield cause("packet-pipe").told()
    elif (inside := _NAMESPACE.fullmatch(found.target)) and int(inside[1]) not in _namespaces(seen):
        yield cause("namespace-outside").told(inode=inside[1])
    elif stat.S_ISCHR(found.mode):
        yield from _unsaved_device(found, seen)
    elif stat.S_ISBLK(found.mode):
        yield cause("device").told(fd=found.fd, what=f"unknown {found.target}")


def _too_many_pipes(seen: Observed) -> Iterator[Finding]:
    read = tuple(filter(reads, seen.descriptors))
    # The target of a pipe tells it from all others; of named pipes it is the path.
    named = {found.target for found in read if stat.S_ISFIFO(found.mode) and not found.target.startswith("pipe:[")}
    for count, what in ((len(pipes(read)), "pipes"), (len(named), "named pipes")):
        if count > _MOST_PIPES:
            yield cause("pipes-too-many").told(count=count, what=what)


def _unsaved_pidfd(found: Descriptor, strangers: Iterable[int]) -> Iterator[Finding]:
    if found.flags & os.O_EXCL:  # PIDFD_THREAD, linux/pidfd.h
        yield cause("pidfd-thread").told()
    for pid in strangers:
        if f"\nPid:\t{pid}\n" in found.info:
            yield cause("pidfd-outside").told(pid=pid)


def _namespaces(seen: Observed) -> frozenset[int]:
    """All that CRIU can name: the tree's and its own."""
    processes = (process.namespaces for process in seen.tree.processes)
    return frozenset(inode for kinds in (seen.own_namespaces, *processes) for _, inode in kinds)


def _unsaved_device(found: Descriptor, seen: Observed) -> Iterator[Finding]:
    number = os.major(found.device), os.minor(found.device)
    major, minor = number
    is_terminal = major in _TERMINALS or minor in _CONSOLES.get(major, ())
    if number == _TUN:
        if shares(seen, "net"):
            yield cause("tun").told()
    elif (
        major != _MEMORY_DEVICES and number != _AUTOFS and not is_terminal and not found.target.startswith(_OF_PLUGINS)
    ):
        yield cause("device").told(fd=found.fd, what=f"chr {major}:{minor}")


def _unmapped(mapping: Mapping, seen: Observed) -> Iterator[Finding]:
    """Source: criu/proc_parse.c, handle_vma and vma_get_mapfile."""
    if mapping.kind == "device":
        yield cause("device-map").told(pid=mapping.pid, address=f"{mapping.start:x}")
    elif mapping.kind == "uprobes":
        yield cause("uprobes").told(pid=mapping.pid)
    elif mapping.kind == "sysv":
        if shares(seen, "ipc"):
            yield cause("sysv-shm").told()
    elif mapping.kind == "unknown":
        special = {"/secretmem": "secretmem", "anon_inode:[io_uring]": "io-uring"}
        key = special.get(mapping.path.removesuffix(" (deleted)"))
        yield cause(key).told() if key else cause("unknown-mapping").told(path=mapping.path)


def _unsaved_files(seen: Observed) -> Iterator[Finding]:
    for found in seen.out_of_reach:
        if found.why == "mount":
            yield cause("mount-lookup").told(path=found.path, fd=found.fd)
        else:
            yield cause("file-hidden").told(path=found.path)
    for epoll in seen.escaped:
        yield cause("epoll-closed").told(pid=epoll.pid)
    if seen.lost_watches:
        yield cause("watch").told()


def _unsaved_sockets(seen: Observed) -> Iterator[Finding]:
    networks = {process.pid: dict(process.namespaces).get("net", 0) for process in seen.tree.processes}
    for held in seen.sockets:
        if held.family not in _FAMILIES:
            yield cause("socket-family").told(number=held.family)
        elif held.family in _INTERNET and held.kind != socket.SOCK_RAW and held.protocol not in _PROTOCOLS:
            yield cause("protocol").told(number=held.protocol)
        if held.corked:
            yield cause("corked").told()
        if held.has_bpf_filter:
            yield cause("socket-program").told()
        if held.unsavable_groups:
            yield cause("netlink-groups").told()
        if held.namespace and held.namespace != networks.get(held.pid, held.namespace):
            yield cause("socket-namespace").told()
    if seen.passing.messages:
        yield cause("netlink-data").told()
    for end in seen.outside_ends:
        other = f" to {end.name}" if end.name else ""
        yield cause("unix-outside").told(socket=f"descriptor {end.fd} of PID {end.pid}, a unix socket{other},")
