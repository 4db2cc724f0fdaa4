"""Check which recorded attributes of processes and threads a restored program keeps, and which it loses.

If the program would lose a protection, crckpt refuses the restore unless the user allows it (`--allow-weaker`). All
other losses are warnings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.host.attributes.sockets import SocketRecord
from crckpt.host.syscalls.own_process import SessionKeyring
from crckpt.images.core import ZOMBIE
from crckpt.images.sockets import InetSocket, NetlinkSocket, PacketSocket, UnixSocket
from crckpt.images.tree import ImageTree
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
from crckpt.preflight.restore.cgroups import CheckedGroups, check_groups, groups_of

_MOST_NODES: Final = 1024  # bits of the mask that is given to set_mempolicy(2)
_OF_SESSION: Final = "autogroup_nice"


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
            yield ThreadAttributes(process.pid, thread.tid, dict(_fit(values, record, host)))


def _fit(
    values: dict[str, AttributeValue], record: AttributeRecord, host: HostAttributes
) -> Iterator[tuple[str, AttributeValue]]:
    """Fit the values to the CPUs and nodes of this host."""
    for name, value in values.items():
        if name == "affinity":
            # A thread that could run on every CPU of the old host was not bound: it may use every CPU here.
            everywhere = set(value) >= set(record.cpus)
            yield name, tuple(sorted((not everywhere and host.cpus & set(value)) or host.cpus))
        elif name == "memory_policy":
            yield name, (*value[:1], *(node for node in value[1:] if 0 <= node < _MOST_NODES))
        # A newer crckpt may have recorded others.
        elif name in ATTRIBUTE_BY_NAME:
            yield name, value


def find_recorded_sockets(record: AttributeRecord, tree: ImageTree) -> Iterator[RecordedSocket]:
    """Return the sockets of the record that are in the tree."""
    by_inode: dict[int, tuple[int, int, InetSocket | UnixSocket | NetlinkSocket]] = {}
    # CRIU saves no inode of a packet socket: look for it where the dump found it.
    by_descriptor: dict[tuple[int, int], PacketSocket] = {}
    for process in tree.processes if record.sockets else ():
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


def judge_attributes(record: AttributeRecord, tree: ImageTree, host: HostAttributes) -> AttributeVerdict:
    """Judge, before anything is restored, what of the record this host can keep."""
    comms = {process.pid: process.comm for process in tree.processes}
    weaker: list[Finding] = []
    lost: list[Finding] = list(_find_fewer_cpus(record, host))
    moves: list[tuple[int, ControlGroup]] = []
    checked: dict[int | None, CheckedGroups] = {}
    for process in record.processes:
        if process.pid not in comms:  # it ended before the freeze
            continue
        values: dict[str, object] = {"pid": process.pid, "comm": comms[process.pid]}
        weaker.extend(_find_weaker(process, values))
        if process.groups not in checked:
            # One finding for all processes in the same groups.
            groups = check_groups(groups_of(record, process), host.restricts, host.old_groups, values)
            checked[process.groups] = groups
            weaker.extend(groups.weaker)
            lost.extend(groups.lost)
        moves.extend((process.pid, group) for group in checked[process.groups].moves)
    weaker.extend(_find_unasked(record, tree))
    weaker.extend(_find_weaker_sockets(record, tree))
    is_in_session = shares_session(record, tree, host.session)
    lost.extend(_find_lost_keys(record, tree, host.session, is_in_session=is_in_session))
    # CRIU would wait there for ever.
    frozen = [cause("group-frozen").finding(pid=pid, path=at.path) for pid, at in moves if at.id in host.frozen]
    return AttributeVerdict(tuple(_once(weaker)), tuple(_once(lost)), tuple(moves), is_in_session, tuple(frozen))


def _find_weaker(process: ProcessRecord, values: dict[str, object]) -> Iterator[Finding]:
    if process.values.get(LANDLOCK):
        yield cause("landlock-lost").finding(**values)
    if process.values.get(UNASKED):
        yield cause("unasked-lost").finding(**values)
    if process.has_own_groups:
        yield cause("cgroup-namespace-lost").finding(**values)
    for name, label in process.labels.items():
        yield cause("label-lost").finding(name=name, label=label, **values)


def _find_weaker_sockets(record: AttributeRecord, tree: ImageTree) -> Iterator[Finding]:
    """Find sockets that lose their peer's user or the keys of their segments."""
    inside = {file.inode for file in tree.files if isinstance(file, UnixSocket) and not file.external}
    comms = {process.pid: process.comm for process in tree.processes}
    sockets = tuple(find_recorded_sockets(record, tree))
    for found in sockets:
        # After a restore the peer of such a connection within the tree seems to be root.
        is_within = isinstance(found.file, UnixSocket) and found.file.peer in inside
        if found.record.owner and not found.record.is_listening and is_within:
            user, *_ = found.record.owner
            yield cause("peer-lost").finding(fd=found.fd, pid=found.pid, comm=comms[found.pid], user=user)
    for found in sockets:
        if found.record.has_keys:
            yield cause("tcp-keys-lost").finding(fd=found.fd, pid=found.pid, comm=comms[found.pid])


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
    """Return whether the tree may have our session keyring: it had this one, or its user is ours."""
    # In a unit it is the unit's keyring, in a shell the login's. A program of another user could read our keys.
    if ours is None:
        return True
    credentials = tree.root.core.credentials
    return ours.id == _session_of(record, tree)[0] or (credentials is not None and credentials.euid == ours.uid)


def _session_of(record: AttributeRecord | None, tree: ImageTree) -> tuple[int, int]:
    """Return the session keyring of the tree's root and how many keys it had; zeros if it was not asked."""
    root = tree.root.pid
    found = next((each for each in record.processes if each.pid == root), None) if record is not None else None
    keyring, keys, *_ = (*(found.values.get("session_keyring", ()) if found is not None else ()), 0, 0)
    return keyring, keys


def _find_lost_keys(
    record: AttributeRecord, tree: ImageTree, ours: SessionKeyring | None, *, is_in_session: bool
) -> Iterator[Finding]:
    keyring, keys = _session_of(record, tree)
    if keys and not is_in_session and ours is not None and keyring != ours.id:
        yield cause("keys-lost").finding(pid=tree.root.pid, comm=tree.root.comm, keys=keys)


def _once(findings: list[Finding]) -> Iterator[Finding]:
    """Return one finding of each kind, and every lost label."""
    # Otherwise a tree of 1,000 processes would fill the screen with one loss. Labels differ, and each may matter.
    keys: set[str] = set()
    for finding in findings:
        if finding.key not in keys or finding.key == "label-lost":
            keys.add(finding.key)
            yield finding


def _find_fewer_cpus(record: AttributeRecord, host: HostAttributes) -> Iterator[Finding]:
    everywhere = set(record.cpus)
    for process in record.processes:
        for tid, values in process.threads.items():
            value = set(values.get("affinity", ()))
            if value and not value >= everywhere and not value <= host.cpus:
                left = value & host.cpus
                yield cause("cpus-missing" if left else "no-cpu-left").finding(
                    tid=tid, missing=_join(value - host.cpus), left=_join(left)
                )
                return


def _join(numbers: set[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))
