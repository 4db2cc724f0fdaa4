"""Observe a live tree: read its state into one value that preflight checks."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import asdict, astuple, replace

from crckpt.host import proc
from crckpt.host.observe import files, tasks
from crckpt.host.observe import sockets as observed_sockets
from crckpt.host.observe.descriptors import LostOwner, find_closed_pipes, find_lost_owners, find_unsaved_current
from crckpt.host.observe.epolls import LostEpoll, find_lost_epolls, find_slow_epolls
from crckpt.host.observe.socket_kinds import Loss, SocketKind, is_readable, read_socket_kinds, unread_bytes
from crckpt.host.observe.watches import find_lost_watches
from crckpt.host.proc.maps import UnsavableMap, find_unsavable_maps
from crckpt.host.proc.status import tracers
from crckpt.host.proc.task_states import TaskStates, read_task_states
from crckpt.host.process import cgroups
from crckpt.host.process.signals import start_thread
from crckpt.host.syscalls import kcmp

_LOCKED: Final = re.compile(r"^lock:\s*\d+: (?:FLOCK|OFDLCK)", re.MULTILINE)
_PIDFD_OF: Final = re.compile(r"^Pid:\s*(-?\d+)", re.MULTILINE)


class Unread(Struct, frozen=True):
    """A descriptor with unread data that CRIU does not save."""

    pid: int
    fd: int
    what: Literal["UDP", "packets", "inotify", "terminal"]


class SharedLock(Struct, frozen=True):
    """A descriptor with a lock that process `other`, outside the tree, shares."""

    pid: int
    fd: int
    path: str
    other: int


class TracedThread(Struct, frozen=True):
    """A traced thread that is not the first of its process."""

    pid: int
    tid: int
    tracer: int


class InCommon(Struct, frozen=True):
    """A process that shares with another one what CRIU would have to save once for both."""

    pid: int
    what: Literal["directories", "descriptors"]


class Transient(Struct, frozen=True):
    """States of a running tree that may pass in a moment: they count if two observations have them.

    `queues` are (PID, fd) of listening TCP sockets with a waiting connection, `messages` of netlink sockets with unread
    messages, `losses` (PID, fd, kind) of what else waits in sockets and is not saved; `shared` are (PID, parent) of
    processes that share their memory, `waiting` parents of these that wait for them (vfork).
    """

    queues: frozenset[tuple[int, int]] = frozenset()
    messages: frozenset[tuple[int, int]] = frozenset()
    shared: frozenset[tuple[int, int]] = frozenset()
    waiting: frozenset[int] = frozenset()
    losses: frozenset[tuple[int, int, Loss]] = frozenset()

    def intersect(self, later: Transient) -> Transient:
        """The states that another observation has, too."""
        return Transient(*(ours & theirs for ours, theirs in zip(astuple(self), astuple(later), strict=True)))


class Observed(Struct, frozen=True):
    """The state of a live tree and of ourselves at one time, read without stopping it.

    `deleted_maps` are (path, bytes, links) of mapped files whose name is gone, `own_namespaces` ours by kind, `memory`
    is how many bytes of the tree's memory are in no file, `strangers` are PIDs outside of it to which it has a pidfd,
    `frozen` are (PID, control group) of processes that are frozen by that. `foreign_namespaces` belong to another user
    namespace than ours. `closed_pipes` are inodes of pipes of which nobody has the other end. `waits` are threads in a
    call that CRIU alone would interrupt. `wall_clock_timers` are PIDs of processes with such POSIX timers,
    `executed_from_memory` of those whose program is a memory file.
    `weak_sockets` come back with less protection. `in_flight` are unix sockets in which descriptors wait. `states` are
    read only if there are these or `kernel_files`. `volatile_files` are paths that a restore needs, and that a reboot
    removes. `unlinked` are files that lost their name, and have another one only in other directories.
    """

    tree: proc.Tree
    descriptors: tuple[proc.Descriptor, ...]
    deleted_maps: tuple[tuple[str, int, int], ...]
    connections: tuple[observed_sockets.TcpConnection, ...]
    datagram_sockets: frozenset[int]
    own_namespaces: tuple[tuple[str, int], ...]
    own_capabilities: frozenset[int]
    memory: int
    outside_ends: tuple[observed_sockets.OutsideEnd, ...] = ()
    sockets: tuple[SocketKind, ...] = ()
    unread: tuple[Unread, ...] = ()
    unsavable_maps: tuple[UnsavableMap, ...] = ()
    unreachable_files: tuple[files.UnreachableFile, ...] = ()
    lost_watches: tuple[proc.Descriptor, ...] = ()
    lost_epolls: tuple[LostEpoll, ...] = ()
    slow_epolls: tuple[proc.Descriptor, int] | None = None
    unexamined_epolls: tuple[proc.Descriptor, ...] = ()
    shared_locks: tuple[SharedLock, ...] = ()
    traced_threads: tuple[TracedThread, ...] = ()
    strangers: frozenset[int] = frozenset()
    frozen: tuple[tuple[int, cgroups.FrozenGroup], ...] = ()
    foreign_namespaces: tuple[tasks.ForeignNamespace, ...] = ()
    closed_pipes: frozenset[int] = frozenset()
    transient: Transient = Transient()
    waits: tuple[tasks.WaitingThread, ...] = ()
    weak_sockets: tuple[observed_sockets.WeakSocket, ...] = ()
    kernel_files: tuple[files.HeldKernelFile, ...] = ()
    in_flight: tuple[proc.Descriptor, ...] = ()
    states: TaskStates = TaskStates()
    volatile_files: tuple[str, ...] = ()
    unlinked: tuple[str, ...] = ()
    reached_limits: tuple[tasks.ReachedLimit, ...] = ()
    in_common: tuple[InCommon, ...] = ()
    unsaved_current: tuple[proc.Descriptor, ...] = ()
    own_of_threads: tuple[tasks.OwnOfThread, ...] = ()
    wall_clock_timers: frozenset[int] = frozenset()
    executed_from_memory: frozenset[int] = frozenset()
    lost_owners: tuple[LostOwner, ...] = ()
    removed_files: tuple[files.RemovedFile, ...] = ()

    @property
    def tracers(self) -> frozenset[int]:
        """PIDs of all tracers of the tree's threads."""
        threads = (thread.tracer for thread in self.traced_threads)
        return frozenset((*threads, *(process.tracer for process in self.tree.processes if process.tracer)))


def observe(root: proc.Process, own: proc.Process, memory: int | None = None) -> Observed:
    """Observe the tree below `root`; `own` is crckpt's process. `memory` is as in `Observed`, measured if None."""
    # What was read by the PID of a process that has ended since may be of another process that got that PID.
    return leave_out_ended(_observe(root, own, memory))


def leave_out_ended(observed: Observed) -> Observed:
    """Leave out what was read by PIDs that no longer belong to the processes of the tree, except the root's.

    The caller pins the root by a pidfd.
    """
    # `foreign_namespaces` stay: they only make preflight refuse.
    tree = observed.tree
    ended = {process.pid for process in tree.processes if process is not tree.root and not process.identity.keeps_pid}
    if not ended:
        return observed
    # All that was read by the PID of one process has it as its `pid`.
    kept = {
        name: tuple(found for found in entries if getattr(found, "pid", 0) not in ended)
        for name, entries in asdict(observed).items()
        if isinstance(entries, tuple) and name != "foreign_namespaces"
    }
    descriptors = tuple(found for found in observed.descriptors if found.pid not in ended)
    return replace(
        observed,
        **kept
        | {
            "tree": proc.Tree(tree.root, tuple(process for process in tree.processes if process.pid not in ended)),
            "frozen": tuple((pid, frozen) for pid, frozen in observed.frozen if pid not in ended),
            "closed_pipes": find_closed_pipes(descriptors),
        },
    )


def _observe(root: proc.Process, own: proc.Process, memory: int | None) -> Observed:
    tree = proc.read_tree(root)
    descriptors = observed_sockets.read_descriptors(tree)
    # Takes the kernel a millisecond for each 128 MiB.
    measured = _start_measuring(lambda: proc.memory(*tree.pids) if memory is None else memory)
    inodes = {(found.pid, found.fd): found.socket_inode for found in descriptors if found.socket_inode}
    first = observed_sockets.sockets_by_inode(descriptors).values()
    sockets = tuple(kind for found in first for kind in read_socket_kinds(found.pid, (found.fd,)))
    # A POSIX lock belongs to a process, all others to an open file, which may be shared.
    locked = [found for found in descriptors if _LOCKED.search(found.info)]
    kernel_files = tuple(files.find_kernel_files(descriptors))
    numbers = {process.pid: process.ns_pids[-1] for process in tree.processes}
    lost_epolls, unexamined_epolls = find_lost_epolls(descriptors, numbers)
    transient = _read_transient(tree, sockets)
    with_sockets = {found.pid for found in descriptors if found.target.startswith("socket:")}
    # The kernel takes milliseconds for its table of TCP sockets. Sockets that we may not see may be among them.
    may_have_tcp = len(sockets) < len(first) or any(held.is_tcp for held in sockets)
    here = frozenset(process.pid for process in tree.processes if _is_same_namespace(process, own, "mnt"))
    # In another mount namespace a name leads elsewhere, so such files are not checked.
    reached = tuple(found for found in descriptors if found.pid in here)
    in_flight = observed_sockets.find_descriptors_in_flight(descriptors)
    names = observed_sockets.find_names(descriptors) if with_sockets else ()
    users = {process.pid: process.uids[1] for process in tree.processes}
    return Observed(
        tree=tree,
        descriptors=descriptors,
        deleted_maps=tuple(found for pid in tree.pids for found in proc.find_deleted_mapped_files(pid)),
        connections=observed_sockets.tcp_connections(sorted(with_sockets)) if may_have_tcp else (),
        datagram_sockets=observed_sockets.unix_datagram_sockets(root.pid) if with_sockets else frozenset(),
        own_namespaces=own.namespaces,
        own_capabilities=proc.effective_capabilities(),
        # sock_diag lists the sockets of our own network namespace.
        outside_ends=observed_sockets.find_outside_ends(root, descriptors)
        if with_sockets and _is_same_namespace(root, own, "net")
        else (),
        sockets=sockets,
        unread=tuple(_find_unread(descriptors, sockets)),
        unsavable_maps=tuple(found for pid in tree.pids for found in find_unsavable_maps(pid)),
        unreachable_files=(
            *files.find_unreachable_files(sorted(here), reached),
            *_find_unreachable_inside(tree, own, descriptors),
        ),
        volatile_files=files.find_volatile_files(sorted(here), reached, names),
        unlinked=files.find_unlinked_files(sorted(here), reached),
        lost_watches=find_lost_watches(reached),
        lost_epolls=lost_epolls,
        slow_epolls=find_slow_epolls(descriptors),
        unexamined_epolls=unexamined_epolls,
        shared_locks=tuple(
            SharedLock(found.pid, found.fd, found.target, other)
            for found, other in kcmp.find_sharers(locked, frozenset(tree.pids))
        ),
        traced_threads=tuple(
            TracedThread(process.pid, tid, tracer)
            for process in tree.processes
            if len(process.threads) > 1
            for tid, tracer in tracers(process.pid)
        ),
        strangers=frozenset(_find_strangers(tree, descriptors)),
        frozen=tuple((pid, frozen) for pid in tree.pids if (frozen := cgroups.find_frozen_group(pid)) is not None),
        foreign_namespaces=tuple(tasks.find_foreign_namespaces(tree.processes, own)),
        closed_pipes=find_closed_pipes(descriptors),
        # The second observation comes last, as long after the first as possible: a busy server often has a connection
        # that waits for a moment.
        transient=transient.intersect(_read_transient(tree, _read_again(sockets)))
        if transient != Transient()
        else transient,
        waits=tuple(tasks.find_waiting_threads(tree.processes)),
        own_of_threads=tuple(tasks.find_own_of_threads(tree.processes)),
        executed_from_memory=frozenset(pid for pid in tree.pids if tasks.is_executed_from_memory(pid)),
        wall_clock_timers=frozenset(pid for pid in tree.pids if tasks.has_wall_clock_timer(pid)),
        weak_sockets=tuple(observed_sockets.find_weak_sockets(sockets, inodes, users)),
        kernel_files=kernel_files,
        in_flight=in_flight,
        states=read_task_states(tree.root.pid) if kernel_files or in_flight else TaskStates(),
        reached_limits=(*tasks.find_reached_limits(tree.pids, descriptors), *tasks.find_long_mount(root.pid)),
        in_common=tuple(_find_in_common(tree)),
        removed_files=tuple(files.find_removed_with_attributes(descriptors)),
        lost_owners=find_lost_owners(tree, descriptors),
        unsaved_current=find_unsaved_current(tree.processes, descriptors),
        memory=measured(),
    )


def _find_in_common(tree: proc.Tree) -> Iterator[InCommon]:
    living = {process.pid: process for process in tree.processes if process.state != "zombie"}
    found = [InCommon(pid, "directories") for _, *others in kcmp.find_groups(tuple(living), kcmp.FS) for pid in others]
    for group in kcmp.find_groups(tuple(living), kcmp.FILES):
        # CRIU saves a table that a process shares with its parent (criu/files.c, shared_fdtable).
        _, *others = (pid for pid in group if living[pid].ppid not in group)
        found += (InCommon(pid, "descriptors") for pid in others)
    # Those that have ended have neither: kcmp finds that they are the same.
    yield from (each for each in found if living[each.pid].identity.find() is not None)


def _find_unreachable_inside(
    tree: proc.Tree, own: proc.Process, descriptors: tuple[proc.Descriptor, ...]
) -> tuple[files.UnreachableFile, ...]:
    """Find unreachable files of a tree with its own mounts: CRIU enters the mount namespace of the root."""
    root = tree.root
    inside = frozenset(process.pid for process in tree.processes if _is_same_namespace(process, root, "mnt"))
    with suppress(OSError):
        # In another root directory, the names that we read lead elsewhere.
        if not _is_same_namespace(root, own, "mnt") and str(Path(f"/proc/{root.pid}/root").readlink()) == "/":
            return files.find_unreachable_files(
                sorted(inside), (each for each in descriptors if each.pid in inside), root.pid
            )
    return ()


def _start_measuring(work: Callable[[], int]) -> Callable[[], int]:
    """Start `work` in a thread; return a function that waits for its result."""
    found: list[int] = []
    thread = start_thread(lambda: found.append(work()))

    def result() -> int:
        thread.join()
        return found[0]

    return result


def _read_transient(tree: proc.Tree, sockets: tuple[SocketKind, ...]) -> Transient:
    shared = frozenset(
        (process.pid, process.ppid)
        for process in tree.processes[1:]
        if kcmp.compare(process.pid, process.ppid, kcmp.VM) == 0
    )
    return Transient(
        queues=frozenset(
            observed_sockets.find_waiting_listeners(sorted({held.pid for held in sockets if held.is_tcp}))
        ),
        messages=frozenset(
            (held.pid, held.fd)
            for held in sockets
            if held.family == socket.AF_NETLINK and is_readable(held.pid, held.fd)
        ),
        shared=shared,
        waiting=frozenset(
            parent
            for _, parent in shared
            if (process := proc.read_process(parent)) is not None and process.state == "uninterruptible"
        ),
        losses=frozenset((held.pid, held.fd, loss) for held in sockets for loss in held.losses),
    )


def _read_again(sockets: tuple[SocketKind, ...]) -> tuple[SocketKind, ...]:
    """Read again those in which something waited that a restore loses."""
    again = {(held.pid, held.fd): read_socket_kinds(held.pid, (held.fd,)) for held in sockets if held.losses}
    return tuple(found for held in sockets for found in again.get((held.pid, held.fd), (held,)))


def _find_strangers(tree: proc.Tree, descriptors: tuple[proc.Descriptor, ...]) -> Iterator[int]:
    """Find processes outside the tree to which it has a pidfd: its fdinfo has 0 if we cannot see it, -1 if it ended."""
    for found in descriptors:
        # CRIU refuses these ("is not a part of process tree", criu/pidfd.c:97), but saves one of an ended process.
        if found.target == "anon_inode:[pidfd]" and (named := _PIDFD_OF.search(found.info)):
            pid = int(named[1])
            # A child that started after the tree was read belongs to it, too.
            if pid >= 0 and pid not in tree.pids and tree.root.pid not in proc.ancestors(pid):
                yield pid


def _find_unread(descriptors: tuple[proc.Descriptor, ...], sockets: tuple[SocketKind, ...]) -> Iterator[Unread]:
    opened = {found.target for found in descriptors}
    for held in sockets:
        is_packets = held.family == socket.AF_PACKET
        if (is_packets or held.protocol == socket.IPPROTO_UDP) and unread_bytes(held.pid, held.fd):
            yield Unread(held.pid, held.fd, "packets" if is_packets else "UDP")
    for found in descriptors:
        if found.target == "anon_inode:inotify" and unread_bytes(found.pid, found.fd):
            yield Unread(found.pid, found.fd, "inotify")
        # CRIU saves what is unread only if both sides are open (criu/tty.c, tty_dump_queued_data).
        index = found.tty_index
        if index is not None and f"/dev/pts/{index}" not in opened and unread_bytes(found.pid, found.fd):
            yield Unread(found.pid, found.fd, "terminal")


def _is_same_namespace(one: proc.Process, other: proc.Process, kind: str) -> bool:
    """Return whether two processes are in the same namespace of a kind."""
    return dict(one.namespaces).get(kind) == dict(other.namespaces).get(kind)
