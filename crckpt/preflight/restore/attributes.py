"""Check which recorded attributes of processes and threads a restored program keeps, and which it loses.

If the program would lose a protection, crckpt refuses the restore unless the user allows it (`--allow-weaker`). All
other losses are warnings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.host.attributes.pipes import PipeRecord
from crckpt.host.attributes.sockets import SocketRecord
from crckpt.host.syscalls.own_process import SessionKeyring
from crckpt.images.core import ZOMBIE
from crckpt.images.other_files import Fifo, PidFd, Pipe, Watch
from crckpt.images.regfile import RegularFile
from crckpt.images.sockets import InetSocket, NetlinkSocket, PacketSocket, UnixSocket
from crckpt.images.tree import ImageProcess, ImageTree
from crckpt.images.tty import Terminal
from crckpt.preflight.attribute_record import (
    ATTRIBUTE_BY_NAME,
    LANDLOCK,
    UNASKED,
    AttributeRecord,
    AttributeValue,
    ControlGroup,
    GroupId,
    GroupMoves,
    ProcessRecord,
)

_MOST_NODES: Final = 1024  # bits of the mask that is given to set_mempolicy(2)
_OF_SESSION: Final = "autogroup_nice"
_LIMITS: Final = ("memory", "swap", "pids", "cpu")
_RULES: Final = ("devices", "network")
_PACKETS: Final = "packets of "
# Of F_SETFL (fcntl(2)), without O_NONBLOCK.
_STATUS_FLAGS: Final = os.O_ASYNC | os.O_APPEND | os.O_NOATIME
# What the program loses without being less protected.
_LOSSES: Final = ("cpus-missing", "no-cpu-left", "group-limits-lost", "keys-lost")


class ThreadAttributes(Struct, frozen=True):
    """The attributes to set on one thread. The first thread of a process also has those of the process."""

    pid: int
    tid: int
    values: dict[str, AttributeValue]


class HostAttributes(Struct, frozen=True):
    """The attributes that a restored tree gets from this host: online CPUs, the restrictions of our control groups, our
    keyring.

    `old_groups`: what those old groups of the tree restrict that still exist; `frozen` are frozen.
    """

    cpus: frozenset[int]
    restricts: dict[str, int] = {}
    session: SessionKeyring | None = None
    old_groups: dict[GroupId, dict[str, int]] = {}
    frozen: frozenset[GroupId] = frozenset()


class AttributeVerdict(Struct, frozen=True):
    """The attributes that a restore cannot keep: `weaker` needs the user's consent, `lost` is a warning. `blockers`
    prevent the restore.

    `is_in_session`: the tree may have our session keyring.
    """

    weaker: tuple[Finding, ...] = ()
    lost: tuple[Finding, ...] = ()
    moves: GroupMoves = ()
    is_in_session: bool = True
    blockers: tuple[Finding, ...] = ()


class RecordedSocket(Struct, frozen=True):
    """A socket of a restored tree with its record: `pid` and `fd` lead to it, `file` is its file in the images."""

    pid: int
    fd: int
    file: InetSocket | UnixSocket | NetlinkSocket | PacketSocket
    record: SocketRecord


def attributes_to_set(record: AttributeRecord, tree: ImageTree, host: HostAttributes) -> Iterator[ThreadAttributes]:
    """Return what to set on each thread of the tree, and on nothing outside it, whatever the record says."""
    # A thread that is younger than the record inherited the attributes of an older one.
    known = {process.pid: process for process in record.processes}
    inside = {process.pid for process in tree.processes}
    inherited: dict[int, ProcessRecord] = {}
    for process in tree.processes:
        found = known.get(process.pid) or inherited.get(process.ppid)
        # A process that has ended has no attributes any more.
        if found is None or process.state == ZOMBIE:
            continue
        inherited[process.pid] = found
        first = found.threads.get(found.pid, {})
        for thread in process.threads:
            values = found.threads.get(thread.tid, first)
            if thread.tid == process.pid:
                # The nice value of a session that began outside the tree is not the tree's to set.
                owns_session = process.sid in inside
                values = values | {
                    name: value for name, value in found.values.items() if owns_session or name != _OF_SESSION
                }
            # A newer crckpt may have recorded others.
            fitted = {name: value for name, value in values.items() if name in ATTRIBUTE_BY_NAME}
            if "affinity" in fitted:
                # A thread that could run on every CPU of the old host was not bound: it may use every CPU here.
                value = set(fitted["affinity"])
                is_bound = not value >= set(record.cpus)
                fitted["affinity"] = tuple(sorted((is_bound and host.cpus & value) or host.cpus))
            if policy := fitted.get("memory_policy"):
                fitted["memory_policy"] = (policy[0], *(node for node in policy[1:] if 0 <= node < _MOST_NODES))
            yield ThreadAttributes(process.pid, thread.tid, fitted)


def find_recorded_sockets(record: AttributeRecord, tree: ImageTree) -> Iterator[RecordedSocket]:
    """Return the sockets of the record that are in the tree."""
    by_inode: dict[int, tuple[int, int, InetSocket | UnixSocket | NetlinkSocket]] = {}
    # CRIU saves no inode of a packet socket: look for it where the dump found it.
    by_descriptor: dict[tuple[int, int], PacketSocket] = {}
    # CRIU makes a shared file in the process with the lowest PID.
    for process in sorted(tree.processes, key=lambda each: each.pid) if record.sockets else ():
        for descriptor in process.descriptors:
            file = descriptor.file
            if isinstance(file, InetSocket | UnixSocket | NetlinkSocket):
                by_inode.setdefault(file.inode, (process.pid, descriptor.fd, file))
            elif isinstance(file, PacketSocket):
                by_descriptor[process.pid, descriptor.fd] = file
    for found in record.sockets:
        place = (found.pid, found.fd)
        if found.inode in by_inode:
            yield RecordedSocket(*by_inode[found.inode], found)
        elif place in by_descriptor:
            yield RecordedSocket(*place, by_descriptor[place], found)


def find_recorded_pipes(record: AttributeRecord, tree: ImageTree) -> Iterator[tuple[int, int, PipeRecord]]:
    """Return the pipes of the record that are in the tree: PID and descriptor of an end, and the record."""
    known = {each.inode: each for each in record.pipes}
    ends: dict[int, list[tuple[int, int, int]]] = {}
    for process in tree.processes if known else ():
        for descriptor in process.descriptors:
            if isinstance(descriptor.file, Pipe) and descriptor.file.pipe_id in known:
                mode = descriptor.file.flags & os.O_ACCMODE
                ends.setdefault(descriptor.file.pipe_id, []).append((process.pid, descriptor.fd, mode))
    for inode, found in ends.items():
        # Instead of a pipe to the outside the tree has a file of ours.
        modes = {mode for *_, mode in found}
        if os.O_RDWR in modes or {os.O_RDONLY, os.O_WRONLY} <= modes:
            yield (*found[0][:2], known[inode])


def find_status_flags(tree: ImageTree) -> Iterator[tuple[int, int, int]]:
    """Return the flags that must be set by F_SETFL (`drop_status_flags`): PID, descriptor, flags; each file once."""
    by_id = {file.id: file for file in tree.files}
    seen = set[int]()
    for process in tree.processes:
        for opened in process.descriptors:
            file = by_id.get(opened.file.file_id or 0) if isinstance(opened.file, Fifo) else opened.file
            wanted = _STATUS_FLAGS if isinstance(file, Watch | PidFd) else os.O_ASYNC
            if isinstance(file, RegularFile | Terminal | Watch | PidFd) and file.flags & wanted and file.id not in seen:
                seen.add(file.id)
                yield process.pid, opened.fd, file.flags & wanted


def judge_attributes(record: AttributeRecord, tree: ImageTree, host: HostAttributes) -> AttributeVerdict:
    """Judge, before anything is restored, what of the record this host can keep."""
    comms = {process.pid: process.comm for process in tree.processes}
    found = list(_find_fewer_cpus(record, host))
    moves: list[tuple[int, ControlGroup]] = []
    checked: dict[int | None, list[ControlGroup]] = {}
    for process in record.processes:
        if process.pid not in comms:  # it ended before the freeze
            continue
        values: dict[str, object] = {"pid": process.pid, "comm": comms[process.pid]}
        lost = {
            "landlock-lost": process.values.get(LANDLOCK),
            "unasked-lost": process.values.get(UNASKED),
            "cgroup-namespace-lost": process.has_own_groups,
        }
        found += [cause(key).finding(**values) for key, is_lost in lost.items() if is_lost]
        for name, label in process.labels.items():
            found.append(cause("label-lost").finding(name=name, label=label, **values))
        if process.groups not in checked:
            # One finding for all processes in the same groups.
            checked[process.groups], losses = _check_groups(record, process.groups, host, values)
            found += losses
        moves.extend((process.pid, group) for group in checked[process.groups])
    found += [*_find_unasked(record, tree), *_find_weaker_sockets(record, tree)]
    keyring, keys = _session_of(record, tree)
    is_in_session = shares_session(record, tree, host.session)
    if keys and not is_in_session and host.session is not None and keyring != host.session.id:
        found.append(cause("keys-lost").finding(pid=tree.root.pid, comm=tree.root.comm, keys=keys))
    # Otherwise a tree of 1,000 processes would fill the screen with one loss. Labels differ, and each may matter.
    once = {(each.key, str(each) if each.key == "label-lost" else ""): each for each in reversed(found)}
    kept = tuple(once.values())[::-1]
    return AttributeVerdict(
        weaker=tuple(each for each in kept if each.key not in _LOSSES),
        lost=tuple(each for each in kept if each.key in _LOSSES),
        moves=tuple(moves),
        is_in_session=is_in_session,
        # CRIU would wait there for ever.
        blockers=tuple(
            cause("group-frozen").finding(pid=pid, path=at.path) for pid, at in moves if at.id in host.frozen
        ),
    )


def _check_groups(
    record: AttributeRecord, index: int | None, host: HostAttributes, values: dict[str, object]
) -> tuple[list[ControlGroup], list[Finding]]:
    """Find the groups to which a process comes back, and the restrictions that others had and ours have not.

    A restored tree is in crckpt's group: under systemd the unit's own, in a shell the user's session. `values`: how
    findings name the process.
    """
    moves, losses = [], []
    # A record from elsewhere may have any index.
    for group in record.groups[index] if index is not None and 0 <= index < len(record.groups) else ():
        rules = [name for name in group.restricts if name in _RULES or name.startswith(_PACKETS)]
        missing = [
            name
            for name, limit in group.restricts.items()
            if name in (*_LIMITS, *rules) and host.restricts.get(name, limit + 1) > limit
        ]
        now = host.old_groups.get(group.id, {})
        # The path may belong to another group by now: use it only if it still has all of the old limits.
        if missing and all(now.get(name, limit + 1) <= limit for name, limit in group.restricts.items()):
            moves.append(group)
        elif missing:
            # Rules on devices, the network and packets are for security. But a service must stay restorable from a
            # shell, in spite of its default limit of tasks.
            lost = [name for name in missing if name in rules]
            key = "group-rules-lost" if lost else "group-limits-lost"
            what = " and ".join(lost or missing)
            losses.append(cause(key).finding(what=what, path=group.path, **values))
    return moves, losses


def _find_weaker_sockets(record: AttributeRecord, tree: ImageTree) -> Iterator[Finding]:
    """Find sockets that lose their own or their peer's user, or the keys of their segments."""
    listening = {file.inode for file in tree.files if isinstance(file, UnixSocket) and file.is_listening}
    outside = {file.inode for file in tree.files if isinstance(file, UnixSocket) and file.external}
    users = {each.pid: each.core.rights.uids[3] for each in tree.processes if each.core.rights is not None}
    comms = {process.pid: process.comm for process in tree.processes}
    sharers: dict[int, set[int]] = {}
    for process in tree.processes:
        for descriptor in process.descriptors:
            sharers.setdefault(descriptor.file.id, set()).add(users.get(process.pid, 0))
    for found in find_recorded_sockets(record, tree):
        file = found.file
        values = {"fd": found.fd, "pid": found.pid, "comm": comms[found.pid]}
        # With the rights of this user it is made again.
        user = users.get(found.pid)
        peer = file.peer if isinstance(file, UnixSocket) else 0
        # Clients and servers are told of each other at once. The kernel keeps who opened a socket, and judges by that
        # what other sockets than unix sockets send.
        if user is None:
            pass  # before a move, rights are not known yet: the restore there asks again
        elif found.record.is_listening or peer in listening or not isinstance(file, UnixSocket):
            maker = found.record.owner if found.record.is_listening else found.record.maker
            # Only the server would be told who has connected a client that waits: each who shares it may have.
            others = {*maker[:1], *(sharers[file.id] if peer in listening else ())} - {0, user}
            if maker and others:
                yield cause("maker-lost").finding(user=min(others), now=user, **values)
        elif found.record.owner and found.record.owner[0] not in (0, user) and peer not in outside:
            yield cause("peer-lost").finding(user=found.record.owner[0], **values)
        if found.record.has_keys:
            yield cause("tcp-keys-lost").finding(**values)


def _find_unasked(record: AttributeRecord, tree: ImageTree) -> Iterator[Finding]:
    """Find processes that may be confined, started after crckpt asked, and may not have inherited that."""
    # The parent that they have now may not be the one that started them: it may adopt orphans.
    known = {process.pid: process for process in tree.processes}
    asked = frozenset(record.asked or ())
    for process in tree.processes:
        if record.asked is None or process.pid in asked or not process.core.no_new_privs:
            continue
        parent = known.get(process.ppid)
        if parent is None or parent.core.adopts or not parent.core.no_new_privs:
            yield cause("unasked-lost").finding(pid=process.pid, comm=process.core.comm)


def shares_session(record: AttributeRecord | None, tree: ImageTree, ours: SessionKeyring | None) -> bool:
    """Return whether the tree may have our session keyring: it had this one, or all its users are ours."""
    # In a unit it is the unit's keyring, in a shell the login's. A program of another user could read our keys.
    if ours is None:
        return True
    return ours.id == _session_of(record, tree)[0] or tree.users == {ours.uid}


def find_separate_sessions(tree: ImageTree) -> dict[int, int]:
    """Find the processes that must not have the session keyring of the tree's root: PID -> the first of those with
    which each may share another one.
    """
    # What was recorded before the freeze does not say who shared one: a program like su(1) may have joined a new one
    # since. Whoever has a keyring reads its keys, whatever their user. So only equals share one.
    known = {process.pid: process for process in tree.processes if process.state != ZOMBIE}
    firsts: dict[int, int] = {}
    for process in known.values():
        parent = known.get(process.ppid)
        is_equal = parent is not None and _powers_of(parent) == _powers_of(process)
        firsts[process.pid] = firsts.get(process.ppid, process.pid) if is_equal else process.pid
    return {pid: first for pid, first in firsts.items() if first != tree.root.pid}


def _powers_of(process: ImageProcess) -> tuple[object, ...]:
    """The rights of a process, and whether others of its user may trace it."""
    rights, memory = process.core.rights, process.memory
    is_dumpable = memory is not None and memory.dumpable == 1
    return (rights.uids, rights.gids, rights.capabilities[1], is_dumpable) if rights is not None else ()


def _session_of(record: AttributeRecord | None, tree: ImageTree) -> tuple[int, int]:
    """Return the session keyring of the tree's root and how many keys it had; zeros if it was not asked."""
    root = tree.root.pid
    found = next((each for each in record.processes if each.pid == root), None) if record is not None else None
    keyring, keys, *_ = (*(found.values.get("session_keyring", ()) if found is not None else ()), 0, 0)
    return keyring, keys


def _find_fewer_cpus(record: AttributeRecord, host: HostAttributes) -> Iterator[Finding]:
    everywhere = set(record.cpus)
    for process in record.processes:
        for tid, values in process.threads.items():
            value = set(values.get("affinity", ()))
            if value and not value >= everywhere and not value <= host.cpus:
                left = value & host.cpus
                missing, still = (", ".join(map(str, sorted(cpus))) for cpus in (value - host.cpus, left))
                yield cause("cpus-missing" if left else "no-cpu-left").finding(tid=tid, missing=missing, left=still)
                return
