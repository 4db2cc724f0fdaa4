"""What writes a process's memory unseen by every tracker: devices, and the kernel at its own time.

A page that a device was given to write is pinned. If the bits are reset before the device has written it, nothing sets
its bit again: the next dump would take the old page for the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from crckpt.host.proc import procfs, status
from crckpt.host.proc.fd import open_flags, read_targets

OWN_USERFAULTFD: Final = "memory is managed by the program's own userfaultfd"
FOREIGN_USERFAULTFD: Final = (
    "its memory is managed by another process's userfaultfd; a tracker that crckpt trackers does not show may be it: "
    "pgrep -af crckpt.tracking.keeper.server"
)

_DEVICES: Final = ("/dev/infiniband/", "/dev/vfio/", "/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/accel/")
_RINGS: Final = {"[aio]": "an aio ring", "[io_uring]": "an io_uring"}
_MISSED: Final = "writes by the device would be missed"


def writes_unseen(pids: Iterable[int]) -> str:
    """The first thing in these processes that rules out tracking, as a clause; empty if there is none."""
    for pid in pids:
        for why in (*_of_maps(pid), *_of_descriptors(pid), *_of_memory(pid)):
            return f"PID {pid} has {why}; {_MISSED}"
    return ""


def userfaultfds_of(pid: int) -> tuple[int, ...]:
    """The descriptors by which the program manages its memory itself."""
    return tuple(number for number, target in _list_descriptors(pid) if target == "anon_inode:[userfaultfd]")


def _of_maps(pid: int) -> Iterator[str]:
    with suppress(OSError):
        maps = procfs.text(f"/proc/{pid}/maps")
        yield from (name for mark, name in _RINGS.items() if mark in maps)


def _of_descriptors(pid: int) -> Iterator[str]:
    for number, target in _list_descriptors(pid):
        if target == "anon_inode:[io_uring]":
            yield "an io_uring"
        elif target.startswith(_DEVICES):
            yield f"{target} open"
        elif target.startswith("/") and open_flags(pid, number) & os.O_DIRECT:
            yield f"an O_DIRECT descriptor ({number}: {target})"


def _of_memory(pid: int) -> Iterator[str]:
    """Find pinned memory. The ring or device that it is pinned for may belong to another process."""
    with suppress(OSError):
        if pinned := status.read_bytes(pid, "VmPin"):
            yield f"{pinned >> 10} KiB of memory pinned for a device"


def _list_descriptors(pid: int) -> Iterator[tuple[int, str]]:
    """Number and name of each descriptor, and no more: the tree is frozen meanwhile, and may have many."""
    with suppress(OSError):
        yield from read_targets(pid)
