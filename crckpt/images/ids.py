"""`ids-PID.img`: which kernel objects a task shares with others (images/core.proto, task_kobj_ids_entry).

The ids are CRIU's own: equal ids mean the same object. A zombie has no such image.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.decode import Field, read_one


class Namespaces(Struct, frozen=True):
    """The ids of a task's namespaces, 0 if the image has none."""

    pid: Annotated[int, Field(5, default=0)]
    net: Annotated[int, Field(6, default=0)]
    ipc: Annotated[int, Field(7, default=0)]
    uts: Annotated[int, Field(8, default=0)]
    mnt: Annotated[int, Field(9, default=0)]
    user: Annotated[int, Field(10, default=0)]
    cgroup: Annotated[int, Field(11, default=0)]
    time: Annotated[int, Field(12, default=0)]


class KernelIds(Struct, frozen=True):
    """The ids of a task's descriptor table (`fdinfo-<files>.img`) and namespaces."""

    files: Annotated[int, Field(2, default=0)]
    namespaces: Annotated[Namespaces, Field()]


def read_ids(data: bytes, name: str = "ids.img") -> KernelIds:
    """Decode the image. Raises IntegrityError if it is damaged."""
    return read_one(KernelIds, data, name, magics.IDS)
