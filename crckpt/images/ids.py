"""`ids-PID.img`: which kernel objects a task shares with others (images/core.proto, task_kobj_ids_entry).

The ids are CRIU's own: equal ids mean the same object. A zombie has no such image.
"""

from __future__ import annotations

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_single
from crckpt.images.wire import Message


class Namespaces(Struct, frozen=True):
    """The ids of a task's namespaces, 0 if the image has none."""

    pid: int
    net: int
    ipc: int
    uts: int
    mnt: int
    user: int
    cgroup: int
    time: int


class KernelIds(Struct, frozen=True):
    """The ids of a task's descriptor table (`fdinfo-<files>.img`) and namespaces."""

    files: int
    namespaces: Namespaces


def read_ids(data: bytes, name: str = "ids.img") -> KernelIds:
    """Decode the image. Raises IntegrityError if it is damaged."""
    return decode_ids(read_single(data, name, magics.IDS))


def decode_ids(message: Message) -> KernelIds:
    # In the order of task_kobj_ids_entry, in which all namespaces are optional. Fields 1, 3 and 4 (address space,
    # directories, signal handlers) are not needed.
    return KernelIds(message.uint(2), Namespaces(*(message.uint(number) for number in range(5, 13))))
