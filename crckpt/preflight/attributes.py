"""The attributes of processes and threads that a restored program keeps, and how it may lose some. Pure.

`ATTRIBUTES` lists how a dump reads each one, how a restore sets it again, and whether it protects something. If a
protection would be lost, crckpt refuses the restore unless the user allows it (`--allow-weaker`). It warns of all other
losses.

Control groups. A restored tree is in crckpt's group: under systemd the unit's own, in a shell the user's session. It
stays there without a warning if that group restricts the tree as much as the old one did. Otherwise crckpt moves the
tree to its old group, if that still exists and still restricts as much. If not, crckpt warns that limits of memory,
swap, tasks and CPU time are lost: a service must stay restorable from a shell in spite of its default limit of tasks.
Rules on devices and on the network are for security: without them crckpt refuses the restore.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from crckpt.causes import Finding, cause
from crckpt.errors import IntegrityError
from crckpt.host.attributes.sockets import SocketRecord
from crckpt.host.syscalls.keyctl import SessionKeyring
from crckpt.images.sockets import InetSocket, NetlinkSocket, PacketSocket, UnixSocket
from crckpt.images.tree import ImageTree

Number = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Place = tuple[str, str]
Value = Annotated[tuple[Number, ...], Meta(max_length=1 << 16)]

_MOST_NODES: Final = 1024
_MOST_HIERARCHIES: Final = 64
"""Of control groups: one for each controller, and version 2."""
_SCHED_DEADLINE: Final = 6


class Attribute(Struct, frozen=True):
    """One attribute, `of` each thread or of the process as a whole.

    `read`: from /proc or a system call on its id (`outside`), by a system call that the process itself is made to make
    (`asked`, see `crckpt.ops.attributes`), by `CRIU`, or not at all. `back`: who sets it at a restore, crckpt from
    `outside`, crckpt by a system call `inside` the process, `CRIU`, or nobody. `protects`: losing it makes the program
    or the host less safe. `test` is its name in tests/programs/attributes.py, empty if a test cannot be made or is
    elsewhere; `note` says why something is not done.
    """

    name: str
    of: Literal["thread", "process"]
    title: str
    read: Literal["outside", "asked", "CRIU", "not"]
    back: Literal["outside", "inside", "CRIU", "not"]
    protects: bool = False
    test: str = ""
    note: str = ""


_NO_SIGN: Final = "the kernel tells it only to the thread itself"

ATTRIBUTES: Final = (
    Attribute("affinity", "thread", "the CPU affinity", "outside", "outside", test="affinity"),
    Attribute("io_priority", "thread", "the I/O priority", "outside", "outside", test="ioprio"),
    Attribute("time_slice", "thread", "the time slice", "outside", "outside", test="slice"),
    Attribute(
        "utilization",
        "thread",
        "the utilization clamp",
        "outside",
        "outside",
        note="tested only on a kernel with CONFIG_UCLAMP_TASK",
    ),
    Attribute("deadline", "thread", "the deadline scheduling", "outside", "outside", test="deadline"),
    # After the policy: the kernel gives threads with a real-time policy no slack.
    Attribute("timer_slack", "thread", "the timer slack", "outside", "outside", test="timer_slack"),
    Attribute("personality", "thread", "the personality", "outside", "inside", test="personality"),
    Attribute("memory_errors", "thread", "the policy for memory errors", "outside", "inside", test="mce_kill"),
    Attribute("io_flusher", "thread", "the mark of an I/O flusher", "outside", "inside", note="needs CAP_SYS_RESOURCE"),
    Attribute(
        "memory_policy",
        "thread",
        "the memory policy",
        "outside",
        "inside",
        note="read on hosts with several NUMA nodes only; the policies of single maps (mbind) are lost",
    ),
    Attribute("core_filter", "process", "the core dump filter", "outside", "outside", test="coredump_filter"),
    Attribute("autogroup_nice", "process", "the autogroup's nice value", "outside", "outside", test="autogroup"),
    Attribute("memory_merge", "process", "the merging of memory", "outside", "inside", test="memory_merge"),
    Attribute("lock_future", "process", "the locking of new maps", "asked", "inside", test="mlock_future"),
    Attribute(
        "no_written_code",
        "process",
        "the refusal of writable code (PR_SET_MDWE)",
        "asked",
        "inside",
        protects=True,
        test="mdwe",
    ),
    Attribute(
        "landlock",
        "process",
        "the Landlock domain",
        "asked",
        "not",
        protects=True,
        test="landlock",
        note="the kernel tells that there is one, and nothing of its rules; asked of the first thread",
    ),
    Attribute(
        "session_keyring",
        "process",
        "the session keyring",
        "asked",
        "not",
        protects=True,
        test="session_keyring",
        note="the tree gets that of the crckpt that restores it, or a new one if that is another user's; keys are lost",
    ),
    Attribute("nice", "thread", "the nice value", "CRIU", "CRIU", test="nice"),
    Attribute("policy", "thread", "the scheduling policy", "CRIU", "CRIU", test="policy"),
    Attribute("reset_on_fork", "thread", "the reset of the policy on fork", "CRIU", "CRIU", test="reset_on_fork"),
    Attribute("oom_score_adj", "process", "the OOM score adjustment", "CRIU", "CRIU", test="oom_score_adj"),
    Attribute("subreaper", "process", "the mark of a subreaper", "CRIU", "CRIU", test="subreaper"),
    Attribute("thp_disable", "process", "the refusal of huge pages", "CRIU", "CRIU", test="thp_disable"),
    Attribute("rlimits", "process", "the resource limits", "CRIU", "CRIU", test="rlimits"),
    Attribute("umask", "process", "the umask", "CRIU", "CRIU", test="umask"),
    Attribute("dumpable", "process", "the dumpable flag", "CRIU", "CRIU", protects=True, test="dumpable"),
    Attribute("no_new_privs", "thread", "no_new_privs", "CRIU", "CRIU", protects=True, test="no_new_privs"),
    Attribute("securebits", "thread", "the securebits", "CRIU", "CRIU", protects=True, test="securebits"),
    Attribute("bounding_set", "thread", "the capability sets", "CRIU", "CRIU", protects=True, test="bounding_set"),
    Attribute("groups", "thread", "the supplementary groups", "CRIU", "CRIU", protects=True, test="groups"),
    Attribute("seccomp", "thread", "the system call filters", "CRIU", "CRIU", protects=True, test="seccomp"),
    Attribute(
        "thp_except_advised",
        "process",
        "huge pages where advised, and only there",
        "not",
        "not",
        note="CRIU refuses them everywhere after the restore",
    ),
    Attribute("cpuid", "thread", "the fault on CPUID", "not", "not", note=_NO_SIGN),
    Attribute("tsc", "thread", "the fault on RDTSC (PR_SET_TSC)", "not", "not", note=_NO_SIGN),
    Attribute("speculation", "thread", "the control of speculation", "not", "not", note="not set by any test host"),
    Attribute("dispatch", "thread", "the dispatch of own system calls", "not", "not", note=_NO_SIGN),
    Attribute("keyrings", "thread", "keys in thread, process and session keyrings", "not", "not", note=_NO_SIGN),
)
BY_NAME: Final = {attribute.name: attribute for attribute in ATTRIBUTES}

LANDLOCK: Final = "landlock"
UNASKED: Final = "unasked"
"""Of a process that may be confined, and could not be asked."""
_OF_SESSION: Final = "autogroup_nice"
LIMITS: Final = ("memory", "swap", "pids", "cpu")
RULES: Final = ("devices", "network")


class Group(Struct, frozen=True):
    """A control group: the controllers of its hierarchy (none: version 2), its path there, and what it restricts.

    Of each limit that is the least of the group and those above it; rules count as 1.
    """

    controllers: str
    path: str
    restricts: dict[str, Number] = {}

    @property
    def place(self) -> Place:
        """What names it."""
        return self.controllers, self.path


class ProcessRecord(Struct, frozen=True):
    """What a dump found of a process. Numbers are those of its own PID namespace.

    `threads` has values by thread id and name. `groups` is a place in the record's list. `labels` are what a security
    module is to give to what the process makes, by name of the file in /proc/PID/attr. `has_own_groups`: it has a
    cgroup namespace that is not the one of the crckpt that dumped it.
    """

    pid: int
    threads: dict[int, dict[str, Value]]
    values: dict[str, Value] = {}
    groups: int | None = None
    labels: dict[str, str] = {}
    has_own_groups: bool = False
    uid: int = 0


class Record(Struct, frozen=True):
    """What a dump found of a tree. `cpus` were online; `groups` are the different sets of groups of its processes.

    `sockets` are those that have more than CRIU saves, each once. `asked` are processes that were asked for what only
    they can tell, or would have been if anything had hinted at it; None if that was not noted.
    """

    cpus: Value
    processes: tuple[ProcessRecord, ...]
    groups: tuple[Annotated[tuple[Group, ...], Meta(max_length=_MOST_HIERARCHIES)], ...] = ()
    asked: tuple[int, ...] | None = None
    sockets: tuple[SocketRecord, ...] = ()


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


def read_record(details: dict[str, object]) -> Record | None:
    """The record in a checkpoint's details; None if there is none, as in older checkpoints. Raises IntegrityError."""
    if "attributes" not in details:
        return None
    try:
        return msgspec.convert(details["attributes"], Record, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"the record of the program's attributes is damaged: {error}") from error


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
