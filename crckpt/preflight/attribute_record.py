"""The attributes of processes and threads that CRIU does not save, and the record that a dump makes of them.

`ATTRIBUTES` lists how a dump reads each one, how a restore sets it again, and whether it protects something.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from crckpt.errors import IntegrityError
from crckpt.host.attributes.descriptors import DescriptorRecord
from crckpt.host.attributes.sockets import SocketRecord

Number = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
GroupId = tuple[str, str]
"""A control group's controllers and path."""
AttributeValue = Annotated[tuple[Number, ...], Meta(max_length=1 << 16)]

# Hierarchies of control groups: one for each controller, and version 2.
_MOST_HIERARCHIES: Final = 64


class Attribute(Struct, frozen=True):
    """One attribute, `of` each thread or of the process as a whole.

    - `read`: how a dump reads it: `outside` (from /proc or by a system call on its id), `asked` (crckpt makes the
      process call the kernel, see `crckpt.ops.dump.attributes`), by `CRIU`, or `not`
    - `back`: how a restore sets it: `outside` (by its id), `inside` (a system call in the process), `CRIU`, or `not`
    - `protects`: without it the program or the host is less safe
    - `test`: its name in tests/programs/attributes.py; empty if a test is impossible or elsewhere
    - `note`: why something is not done
    """

    name: str
    of: Literal["thread", "process"]
    title: str
    read: Literal["outside", "asked", "CRIU", "not"]
    back: Literal["outside", "inside", "CRIU", "not"]
    protects: bool = False
    test: str = ""
    note: str = ""


_NOT_VISIBLE: Final = "the kernel shows it only to the thread itself"

# A restore sets them in this order.
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
    Attribute(
        "directories",
        "thread",
        "its own working directory, root and umask",
        "outside",
        "inside",
        protects=True,
        note="tested by test_kept_state.py; threads that share them with each other, but not with the first thread, "
        "each get their own",
    ),
    Attribute("core_filter", "process", "the core dump filter", "outside", "outside", test="coredump_filter"),
    Attribute("autogroup_nice", "process", "the autogroup's nice value", "outside", "outside", test="autogroup"),
    Attribute("memory_merge", "process", "the merging of memory", "outside", "inside", test="memory_merge"),
    Attribute(
        "segments",
        "process",
        "the segments of its own (modify_ldt)",
        "asked",
        "inside",
        note="tested by test_kept_state.py",
    ),
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
        note="the kernel says that there is one, but not its rules; asked of the first thread",
    ),
    Attribute(
        "session_keyring",
        "process",
        "the session keyring",
        "asked",
        "not",
        protects=True,
        test="session_keyring",
        note="the tree gets the keyring of the restoring crckpt, or a new one for another user; keys are lost",
    ),
    # From here on: what CRIU saves and sets itself, as tests check, and what neither does.
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
    Attribute("cpuid", "thread", "the fault on CPUID", "not", "not", note=_NOT_VISIBLE),
    Attribute("tsc", "thread", "the fault on RDTSC (PR_SET_TSC)", "not", "not", note=_NOT_VISIBLE),
    Attribute("speculation", "thread", "the control of speculation", "not", "not", note="not set by any test host"),
    Attribute("dispatch", "thread", "the dispatch of own system calls", "not", "not", note=_NOT_VISIBLE),
    Attribute("keyrings", "thread", "keys in thread, process and session keyrings", "not", "not", note=_NOT_VISIBLE),
)
ATTRIBUTE_BY_NAME: Final = {attribute.name: attribute for attribute in ATTRIBUTES}

LANDLOCK: Final = "landlock"
UNASKED: Final = "unasked"
"""The value of a process that may be confined and could not be asked."""


class ControlGroup(Struct, frozen=True):
    """A control group: the controllers of its hierarchy (none: version 2), its path there, and what it restricts.

    Each limit is the lowest of the group and its ancestors. Rules are recorded as 1.
    """

    controllers: str
    path: str
    restricts: dict[str, Number] = {}

    @property
    def id(self) -> GroupId:
        """Hierarchy and path together."""
        return self.controllers, self.path


GroupMoves: TypeAlias = tuple[tuple[int, ControlGroup], ...]
"""(PID, group) of processes that come back to a control group."""


class ProcessRecord(Struct, frozen=True):
    """The attributes of a process, as a dump recorded them. Ids are those of its own PID namespace.

    - `threads`: values by thread id and name
    - `groups`: an index into the record's list
    - `labels`: pending labels of a security module, by the name of the file in /proc/PID/attr
    - `has_own_groups`: its cgroup namespace is not that of the crckpt that dumped it
    """

    pid: int
    threads: dict[int, dict[str, AttributeValue]]
    values: dict[str, AttributeValue] = {}
    groups: int | None = None
    labels: dict[str, str] = {}
    has_own_groups: bool = False
    uid: int = 0


class AttributeRecord(Struct, frozen=True):
    """The attributes of a tree, as a dump recorded them.

    - `cpus`: the CPUs that were online
    - `groups`: the distinct sets of groups of its processes
    - `sockets`: the sockets that have more than CRIU saves, each once
    - `descriptors`: timers and terminals that have more than CRIU saves
    - `asked`: the processes that crckpt asked, or had no reason to ask; None if an older crckpt did not record this
    """

    cpus: AttributeValue
    processes: tuple[ProcessRecord, ...]
    groups: tuple[Annotated[tuple[ControlGroup, ...], Meta(max_length=_MOST_HIERARCHIES)], ...] = ()
    asked: tuple[int, ...] | None = None
    sockets: tuple[SocketRecord, ...] = ()
    descriptors: tuple[DescriptorRecord, ...] = ()


def read_attribute_record(details: dict[str, object]) -> AttributeRecord | None:
    """Decode the record in a checkpoint's details; None if there is none, as in older checkpoints.

    Raises IntegrityError.
    """
    if "attributes" not in details:
        return None
    found = details["attributes"]
    if isinstance(found, dict):
        found = found | {"descriptors": details.get("descriptors", ())}
    # The record may come from elsewhere, and root acts on it: the types limit every number and length.
    try:
        return msgspec.convert(found, AttributeRecord, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"the record of the program's attributes is damaged: {error}") from error
