"""What a dump records of the attributes of processes and threads that CRIU does not save. Pure.

`ATTRIBUTES` lists how a dump reads each one, how a restore sets it again, and whether it protects something.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from crckpt.errors import IntegrityError
from crckpt.host.attributes.sockets import SocketRecord

Number = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Place = tuple[str, str]
Value = Annotated[tuple[Number, ...], Meta(max_length=1 << 16)]

_MOST_HIERARCHIES: Final = 64
"""Of control groups: one for each controller, and version 2."""


class Attribute(Struct, frozen=True):
    """One attribute, `of` each thread or of the process as a whole.

    `read`: from /proc or a system call on its id (`outside`), by a system call that the process itself is made to make
    (`asked`, see `crckpt.ops.dump.attributes`), by `CRIU`, or not at all. `back`: who sets it at a restore, crckpt from
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


def read_record(details: dict[str, object]) -> Record | None:
    """The record in a checkpoint's details; None if there is none, as in older checkpoints. Raises IntegrityError."""
    if "attributes" not in details:
        return None
    try:
        return msgspec.convert(details["attributes"], Record, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"the record of the program's attributes is damaged: {error}") from error
