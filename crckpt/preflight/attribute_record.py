"""The attributes of processes and threads that CRIU does not save, and the record that a dump makes of them.

`ATTRIBUTES` lists how a restore sets each one again, and whether it protects something.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from crckpt.errors import IntegrityError
from crckpt.host.attributes.descriptors import DescriptorRecord
from crckpt.host.attributes.pipes import PipeRecord
from crckpt.host.attributes.sockets import SocketRecord

Number = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
GroupId = tuple[str, str]
"""A control group's controllers and path."""
AttributeValue = Annotated[tuple[Number, ...], Meta(max_length=1 << 16)]

# Hierarchies of control groups: one for each controller, and version 2.
_MOST_HIERARCHIES: Final = 64


class Attribute(Struct, frozen=True):
    """One attribute of a thread, or of the process as a whole, that a dump records.

    - `back`: how a restore sets it: `outside` (by the task's id), `inside` (a system call in the process), or `not`
    - `protects`: without it the program or the host is less safe
    """

    name: str
    title: str
    back: Literal["outside", "inside", "not"]
    protects: bool = False


# A restore sets them in this order. `!`: it protects.
_TABLE: Final = """
# name              back    title
affinity            outside the CPU affinity
io_priority         outside the I/O priority
time_slice          outside the time slice
utilization         outside the utilization clamp
deadline            outside the deadline scheduling
# After the policy: the kernel gives threads with a real-time policy no slack.
timer_slack         outside the timer slack
personality         inside  the personality
memory_errors       inside  the policy for memory errors
io_flusher          inside  the mark of an I/O flusher
memory_policy       inside  the memory policy
directories!        inside  its own working directory, root and umask
login_uid!          inside  the login user for the audit log
core_filter         outside the core dump filter
autogroup_nice      outside the autogroup's nice value
memory_merge        inside  the merging of memory
segments            inside  the segments of its own (modify_ldt)
lock_future         inside  the locking of new maps
no_written_code!    inside  the refusal of writable code (PR_SET_MDWE)
landlock!           not     the Landlock domain
session_keyring!    not     the session keyring
"""


def _read_attribute(row: str) -> Attribute:
    name, back, title = row.split(maxsplit=2)
    fields = {"name": name.rstrip("!"), "title": title, "back": back, "protects": name.endswith("!")}
    return msgspec.convert(fields, Attribute)


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
    - `sockets`: the sockets that have more than CRIU saves, each once; if not all processes are root's, all sockets
    - `pipes`: its pipes, each once, if not all processes are root's
    - `descriptors`: timers and terminals that have more than CRIU saves
    - `devices`: the names of network devices by number, if the network had packet sockets; None in older checkpoints
    - `asked`: the processes that crckpt asked, or had no reason to ask; None if an older crckpt did not record this
    """

    cpus: AttributeValue
    processes: tuple[ProcessRecord, ...]
    groups: tuple[Annotated[tuple[ControlGroup, ...], Meta(max_length=_MOST_HIERARCHIES)], ...] = ()
    asked: tuple[int, ...] | None = None
    sockets: tuple[SocketRecord, ...] = ()
    pipes: tuple[PipeRecord, ...] = ()
    descriptors: tuple[DescriptorRecord, ...] = ()
    devices: dict[int, str] | None = None


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
