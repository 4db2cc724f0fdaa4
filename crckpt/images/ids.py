"""`ids-PID.img`: which kernel objects a task shares with others (images/core.proto, task_kobj_ids_entry).

The numbers are CRIU's own: equal numbers mean the same object. A zombie has no such image.
"""

from __future__ import annotations

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_single
from crckpt.images.wire import Message


class Namespaces(Struct, frozen=True):
    """A task's namespaces, 0 where CRIU did not say."""

    pid: int
    net: int
    ipc: int
    uts: int
    mnt: int
    user: int
    cgroup: int
    time: int


class KernelIds(Struct, frozen=True):
    """Address space, descriptor table (`fdinfo-<files>.img`), directories, signal handlers and namespaces."""

    vm: int
    files: int
    fs: int
    sighand: int
    namespaces: Namespaces


def read_ids(data: bytes, name: str = "ids.img") -> KernelIds:
    """Raises IntegrityError when the image is damaged."""
    return decode_ids(read_single(data, name, magics.IDS))


def decode_ids(message: Message) -> KernelIds:
    """The ids in a message that has them embedded."""
    vm, files, fs, sighand = (message.uint(number) for number in range(1, 5))
    return KernelIds(vm, files, fs, sighand, Namespaces(*(message.uint(number) for number in range(5, 13))))
