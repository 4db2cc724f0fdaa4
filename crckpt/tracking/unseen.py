"""What writes a process's memory without any tracker seeing it: devices, and the kernel on its own time.

A page that a device was given to write is pinned. If the bits are reset before the device has written it, nothing sets
its bit again: the next dump would take the old page for the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host import proc

_DEVICES: Final = ("/dev/infiniband/", "/dev/vfio/", "/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/accel/")
_MISSED: Final = "writes by the device would be missed"
OWN_USERFAULTFD: Final = "memory is managed by the program's own userfaultfd"
_RINGS: Final = {"[aio]": "an aio ring", "[io_uring]": "an io_uring"}


def writes_unseen(pids: Iterable[int]) -> str:
    """The first thing found in these processes that rules out tracking, as a clause; empty if there is none."""
    for pid in pids:
        for found in proc.descriptors(pid):
            why = _of_descriptor(found)
            if why:
                return f"PID {pid} has {why}"
        for line in _maps(pid):
            for mark, name in _RINGS.items():
                if mark in line:
                    return f"PID {pid} has {name}; {_MISSED}"
    return ""


def userfaultfds_of(pid: int) -> tuple[int, ...]:
    """Descriptors by which the program manages memory itself."""
    return tuple(found.fd for found in proc.descriptors(pid) if found.target == "anon_inode:[userfaultfd]")


def _of_descriptor(found: proc.Descriptor) -> str:
    if found.flags & os.O_DIRECT and found.target.startswith("/"):
        return f"an O_DIRECT descriptor ({found.fd}: {found.target}); {_MISSED}"
    if found.target == "anon_inode:[io_uring]":
        return f"an io_uring (descriptor {found.fd}); {_MISSED}"
    if found.target.startswith(_DEVICES):
        return f"{found.target} open; {_MISSED}"
    return ""


def _maps(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    return []
