"""Judge which recorded attributes of processes and threads a restored program keeps, and which it loses. Pure.

If a protection would be lost, crckpt refuses the restore unless the user allows it (`--allow-weaker`). It warns of all
other losses.

Control groups. A restored tree is in crckpt's group: under systemd the unit's own, in a shell the user's session. It
stays there without a warning if that group restricts the tree as much as the old one did. Otherwise crckpt moves the
tree to its old group, if that still exists and still restricts as much. If not, crckpt warns that limits of memory,
swap, tasks and CPU time are lost: a service must stay restorable from a shell in spite of its default limit of tasks.
Rules on devices and on the network are for security: without them crckpt refuses the restore.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.host.attributes.sockets import SocketRecord
from crckpt.host.syscalls.keyctl import SessionKeyring
from crckpt.images.sockets import InetSocket, NetlinkSocket, PacketSocket, UnixSocket
from crckpt.images.tree import ImageTree
from crckpt.preflight.attribute_record import BY_NAME, LANDLOCK, UNASKED, Group, Place, ProcessRecord, Record, Value

_MOST_NODES: Final = 1024
_SCHED_DEADLINE: Final = 6


_OF_SESSION: Final = "autogroup_nice"
LIMITS: Final = ("memory", "swap", "pids", "cpu")
RULES: Final = ("devices", "network")


class Wish(Struct, frozen=True):
    """What one thread is to have again; of the first of a process, also what the process is to have."""

    pid: int
    tid: int
    values: dict[str, Value]


class Landing(Struct, frozen=True):
    """What a restored tree meets: the CPUs that are online, what our own control groups restrict,
    and our session keyring.

    `now` has what those of the old groups restrict that are still there.
    """

    cpus: frozenset[int]
    restricts: dict[str, int] = {}
    session: SessionKeyring | None = None
    now: dict[Place, dict[str, int]] = {}


class Judgement(Struct, frozen=True):
    """What cannot be kept: `weaker` is to be allowed by the user, `lost` is said. `moves` are (PID, group).

    `is_in_session`: the tree may have our session keyring.
    """

    weaker: tuple[Finding, ...] = ()
    lost: tuple[Finding, ...] = ()
    moves: tuple[tuple[int, Group], ...] = ()
    is_in_session: bool = True


def wishes(record: Record, tree: ImageTree, landing: Landing) -> Iterator[Wish]:
    """What each thread of the tree is to have. One that is younger than the record inherited from an older one.

    Nothing is wished for a process that is not in the tree, whatever the record says.
    """
    known = {process.pid: process for process in record.processes}
    inside = {process.pid for process in tree.processes}
    heirs: dict[int, ProcessRecord] = {}
    for process in tree.processes:
        found = known.get(process.pid) or heirs.get(process.ppid)
        if found is None:
            continue
        heirs[process.pid] = found
        first = found.threads.get(found.pid, {})
        for thread in process.threads:
            values = found.threads.get(thread.tid, first)
            if thread.tid == process.pid:
                # A session that others began is theirs to rank.
                ranked = process.sid in inside
                values = values | {name: found.values[name] for name in found.values if ranked or name != _OF_SESSION}
            yield Wish(process.pid, thread.tid, dict(_fitted(values, record, landing)))


def _fitted(values: dict[str, Value], record: Record, landing: Landing) -> Iterator[tuple[str, Value]]:
    for name, value in values.items():
        if name == "affinity":
            everywhere = set(value) >= set(record.cpus)
            yield name, tuple(sorted((not everywhere and landing.cpus & set(value)) or landing.cpus))
        elif name == "memory_policy":
            yield name, (*value[:1], *(node for node in value[1:] if 0 <= node < _MOST_NODES))
        elif name in BY_NAME:
            yield name, value


class Socket(Struct, frozen=True):
    """A socket of a restored tree: PID and descriptor by which it has it, its file in the images, and its record."""

    pid: int
    fd: int
    file: InetSocket | UnixSocket | NetlinkSocket | PacketSocket
    record: SocketRecord


def sockets(record: Record, tree: ImageTree) -> Iterator[Socket]:
    """Those of the record that are in the tree.

    CRIU saves no inode of a packet socket: that is looked for where the dump found it.
    """
    named: dict[int, tuple[int, int, InetSocket | UnixSocket | NetlinkSocket]] = {}
    others: dict[tuple[int, int], PacketSocket] = {}
    for process in tree.processes if record.sockets else ():
        for descriptor in process.descriptors:
            file = descriptor.file
            if isinstance(file, InetSocket | UnixSocket | NetlinkSocket):
                named.setdefault(file.inode, (process.pid, descriptor.fd, file))
            elif isinstance(file, PacketSocket):
                others[process.pid, descriptor.fd] = file
    for found in record.sockets:
        place = (found.pid, found.fd)
        if found.inode in named:
            yield Socket(*named[found.inode], found)
        elif place in others:
            yield Socket(*place, others[place], found)


def _strange_peers(record: Record, tree: ImageTree) -> Iterator[Finding]:
    """Connections to a process of another user in the tree: a restored one tells that its peer is root's."""
    inside = {file.inode for file in tree.files if isinstance(file, UnixSocket) and not file.external}
    comms = {process.pid: process.comm for process in tree.processes}
    for found in sockets(record, tree):
        is_within = isinstance(found.file, UnixSocket) and found.file.peer in inside
        if found.record.owner and not found.record.is_listening and is_within:
            user, *_ = found.record.owner
            yield cause("peer-lost").told(fd=found.fd, pid=found.pid, comm=comms[found.pid], user=user)


def judge(record: Record, tree: ImageTree, landing: Landing) -> Judgement:
    """What of the record can be kept on this host, before anything is restored."""
    comms = {process.pid: process.comm for process in tree.processes}
    weaker: list[Finding] = []
    lost: list[Finding] = list(_fewer_cpus(record, landing))
    moves: list[tuple[int, Group]] = []
    old_groups: dict[int | None, tuple[Group, ...]] = {}
    for process in record.processes:
        if process.pid not in comms:
            continue
        named: dict[str, object] = {"pid": process.pid, "comm": comms[process.pid]}
        if process.values.get(LANDLOCK):
            weaker.append(cause("landlock-lost").told(**named))
        if process.values.get(UNASKED):
            weaker.append(cause("unasked-lost").told(**named))
        if process.has_own_groups:
            weaker.append(cause("cgroup-namespace-lost").told(**named))
        weaker.extend(
            cause("label-lost").told(name=name, label=label, **named) for name, label in process.labels.items()
        )
        if process.groups not in old_groups:
            # Of processes in the same groups the first speaks for all.
            old_groups[process.groups] = tuple(_judge_groups(_groups(record, process), landing, named, weaker, lost))
        moves.extend((process.pid, group) for group in old_groups[process.groups])
    weaker.extend(_unasked(record, tree))
    weaker.extend(_strange_peers(record, tree))
    weaker.extend(
        cause("tcp-keys-lost").told(fd=found.fd, pid=found.pid, comm=comms[found.pid])
        for found in sockets(record, tree)
        if found.record.has_keys
    )
    is_in_session = shares_session(record, tree, landing.session)
    lost.extend(_keys_lost(record, tree, landing.session, is_in_session=is_in_session))
    return Judgement(tuple(_once(weaker)), tuple(_once(lost)), tuple(moves), is_in_session)


def _unasked(record: Record, tree: ImageTree) -> Iterator[Finding]:
    """Processes that came after the question, may be confined, and need not have that from the parent that they have.

    That may be another than the one that made them: one that adopts, or whom nothing hints at.
    """
    known = {process.pid: process for process in tree.processes}
    asked = frozenset(record.asked or ())
    for process in tree.processes:
        if record.asked is None or process.pid in asked or not process.core.no_new_privs:
            continue
        parent = known.get(process.ppid)
        if parent is None or parent.core.adopts or not parent.core.no_new_privs:
            yield cause("unasked-lost").told(pid=process.pid, comm=process.core.comm)


def _judge_groups(
    groups: tuple[Group, ...],
    landing: Landing,
    named: dict[str, object],
    weaker: list[Finding],
    lost: list[Finding],
) -> Iterator[Group]:
    """The groups that processes are to be moved to. Add what the others restricted to `weaker` and `lost`."""
    for group in groups:
        missing = _unrestricted(group, landing)
        if missing and _is_still_there(group, landing):
            yield group
        elif missing:
            rules = [name for name in missing if name in RULES]
            told = cause("group-rules-lost" if rules else "group-limits-lost").told(
                what=" and ".join(rules or missing), path=group.path, **named
            )
            (weaker if rules else lost).append(told)


def shares_session(record: Record | None, tree: ImageTree, ours: SessionKeyring | None) -> bool:
    """Whether the tree may have our session keyring: one that it had, or one of its own user.

    As for control groups: in a unit that is the unit's, in a shell that of the login. But a program of another user
    could read our keys.
    """
    if ours is None:
        return True
    who = tree.root.core.credentials
    return ours.id == _session_of(record, tree)[0] or (who is not None and who.euid == ours.uid)


def _session_of(record: Record | None, tree: ImageTree) -> tuple[int, int]:
    """The session keyring of the tree's root, and how many keys it had; zeros if it was not asked."""
    root = tree.root.pid
    found = next((each for each in record.processes if each.pid == root), None) if record is not None else None
    keyring, keys, *_ = (*(found.values.get("session_keyring", ()) if found is not None else ()), 0, 0)
    return keyring, keys


def _keys_lost(
    record: Record, tree: ImageTree, ours: SessionKeyring | None, *, is_in_session: bool
) -> Iterator[Finding]:
    keyring, keys = _session_of(record, tree)
    if keys and not is_in_session and ours is not None and keyring != ours.id:
        yield cause("keys-lost").told(pid=tree.root.pid, comm=tree.root.comm, keys=keys)


def _once(findings: list[Finding]) -> Iterator[Finding]:
    """Of many processes with the same fate the first speaks for all."""
    told: set[str] = set()
    for finding in findings:
        if finding.key not in told or finding.key == "label-lost":
            told.add(finding.key)
            yield finding


def _fewer_cpus(record: Record, landing: Landing) -> Iterator[Finding]:
    wanted = set(record.cpus)
    for process in record.processes:
        for tid, values in process.threads.items():
            value = set(values.get("affinity", ()))
            if value and not value >= wanted and not value <= landing.cpus:
                left = value & landing.cpus
                yield cause("cpus-missing" if left else "no-cpu-left").told(
                    tid=tid, missing=_listed(value - landing.cpus), left=_listed(left)
                )
                return


def _listed(numbers: set[int] | frozenset[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def _groups(record: Record, process: ProcessRecord) -> tuple[Group, ...]:
    index = process.groups
    return () if index is None or not 0 <= index < len(record.groups) else record.groups[index]


def _unrestricted(group: Group, landing: Landing) -> list[str]:
    """What the old group restricted, and ours do not, or less."""
    return [
        name
        for name, limit in group.restricts.items()
        if name in (*LIMITS, *RULES) and landing.restricts.get(name, limit + 1) > limit
    ]


def _is_still_there(group: Group, landing: Landing) -> bool:
    now = landing.now.get(group.place)
    return now is not None and all(now.get(name, limit + 1) <= limit for name, limit in group.restricts.items())
