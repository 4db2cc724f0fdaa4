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
      process call the kernel, see `crckpt.ops.dump.details`), by `CRIU`, or `not`
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


# A restore sets them in this order. `!`: it protects.
_TABLE: Final = """
# name              of       read    back    test            title
affinity            thread   outside outside affinity        the CPU affinity
io_priority         thread   outside outside ioprio          the I/O priority
time_slice          thread   outside outside slice           the time slice
utilization         thread   outside outside -               the utilization clamp
deadline            thread   outside outside deadline        the deadline scheduling
# After the policy: the kernel gives threads with a real-time policy no slack.
timer_slack         thread   outside outside timer_slack     the timer slack
personality         thread   outside inside  personality     the personality
memory_errors       thread   outside inside  mce_kill        the policy for memory errors
io_flusher          thread   outside inside  -               the mark of an I/O flusher
memory_policy       thread   outside inside  -               the memory policy
directories         thread!  outside inside  -               its own working directory, root and umask
core_filter         process  outside outside coredump_filter the core dump filter
autogroup_nice      process  outside outside autogroup       the autogroup's nice value
memory_merge        process  outside inside  memory_merge    the merging of memory
segments            process  asked   inside  -               the segments of its own (modify_ldt)
lock_future         process  asked   inside  mlock_future    the locking of new maps
no_written_code     process! asked   inside  mdwe            the refusal of writable code (PR_SET_MDWE)
landlock            process! asked   not     landlock        the Landlock domain
session_keyring     process! asked   not     session_keyring the session keyring
# From here on: what CRIU saves and sets itself, as tests check, and what neither does.
nice                thread   CRIU    CRIU    nice            the nice value
policy              thread   CRIU    CRIU    policy          the scheduling policy
reset_on_fork       thread   CRIU    CRIU    reset_on_fork   the reset of the policy on fork
oom_score_adj       process  CRIU    CRIU    oom_score_adj   the OOM score adjustment
subreaper           process  CRIU    CRIU    subreaper       the mark of a subreaper
thp_disable         process  CRIU    CRIU    thp_disable     the refusal of huge pages
rlimits             process  CRIU    CRIU    rlimits         the resource limits
umask               process  CRIU    CRIU    umask           the umask
dumpable            process! CRIU    CRIU    dumpable        the dumpable flag
no_new_privs        thread!  CRIU    CRIU    no_new_privs    no_new_privs
securebits          thread!  CRIU    CRIU    securebits      the securebits
bounding_set        thread!  CRIU    CRIU    bounding_set    the capability sets
groups              thread!  CRIU    CRIU    groups          the supplementary groups
seccomp             thread!  CRIU    CRIU    seccomp         the system call filters
thp_except_advised  process  not     not     -               huge pages where advised, and only there
cpuid               thread   not     not     -               the fault on CPUID
tsc                 thread   not     not     -               the fault on RDTSC (PR_SET_TSC)
speculation         thread   not     not     -               the control of speculation
dispatch            thread   not     not     -               the dispatch of own system calls
keyrings            thread   not     not     -               keys in thread, process and session keyrings
"""
_NOTES: Final = {
    "utilization": "tested only on a kernel with CONFIG_UCLAMP_TASK",
    "io_flusher": "needs CAP_SYS_RESOURCE",
    "memory_policy": "read on hosts with several NUMA nodes only; the policies of single maps (mbind) are lost",
    "directories": "tested by test_kept_state.py; threads that share them with each other, but not with the first "
    "thread, each get their own",
    "segments": "tested by test_kept_state.py",
    "landlock": "the kernel says that there is one, but not its rules; asked of the first thread",
    "session_keyring": "the tree gets the keyring of the restoring crckpt, or a new one for another user; keys are "
    "lost",
    "thp_except_advised": "CRIU refuses them everywhere after the restore",
    "speculation": "not set by any test host",
    **dict.fromkeys(("cpuid", "tsc", "dispatch", "keyrings"), "the kernel shows it only to the thread itself"),
}


def _read_attribute(row: str) -> Attribute:
    name, of, read, back, test, title = row.split(maxsplit=5)
    fields = {"name": name, "of": of.rstrip("!"), "title": title, "read": read, "back": back}
    given = {"protects": of.endswith("!"), "test": test.strip("-"), "note": _NOTES.get(name, "")}
    return msgspec.convert(fields | given, Attribute)


ATTRIBUTES: Final = tuple(_read_attribute(row) for row in _TABLE.strip().splitlines() if not row.startswith("#"))
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
