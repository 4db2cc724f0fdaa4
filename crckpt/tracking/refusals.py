"""Why a tracker is refused: by the CRIU, by a process, or by what writes memory unseen.

`choose_tracker` refuses by the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host.proc import procfs, status
from crckpt.host.proc.fd import open_flags, read_targets
from crckpt.tracking.preload import library

CLAIMED: Final = "it is tracked by another crckpt"
EXECUTED: Final = "the program was replaced (exec)"
HUGE_PAGES: Final = "it has reserved huge pages (hugetlb), where a CRIU before 3.18 misses writes"
NO_DESCRIPTOR: Final = "crckpt has no free descriptor for it (RLIMIT_NOFILE)"
OWN_USERFAULTFD: Final = "memory is managed by the program's own userfaultfd"
FOREIGN_USERFAULTFD: Final = (
    "another process's userfaultfd manages its memory, perhaps that of a lost tracker: crckpt ps"
)
NO_RESET: Final = (CLAIMED, OWN_USERFAULTFD, FOREIGN_USERFAULTFD)
"""The bits of a process that was refused so must not be reset: another one needs them."""

# Through these, a device may write into the memory of the program (DMA).
_DEVICES: Final = ("/dev/infiniband/", "/dev/vfio/", "/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/accel/")
_RINGS: Final = {"[aio]": "an aio ring", "[io_uring]": "an io_uring"}
_MISSED: Final = "crckpt cannot see what the device writes"


def find_criu_refusal(criu: Path, tracker: str) -> str:
    """Return why this CRIU does not track with the preload library, or an empty string."""
    if not library.LIBRARY.exists():
        return library.NO_LIBRARY
    # A kernel that has the bits makes CRIU succeed without the library, too. Only the library refuses an empty name.
    # A CRIU that does without the library, on a kernel that tracks, is refused: it would not stop at the gate.
    if library.NO_TRACKER not in library.check_feature(criu, "").output:
        reason = "it starts without it"
    elif (check := library.check_feature(criu, tracker)).ok:
        return ""
    else:
        reason = (check.output.strip().splitlines() or [f"status {check.status}"])[-1]
    return f"{criu} does not load crckpt's preload library: {reason}"


def find_userfaultfds(pid: int) -> tuple[int, ...]:
    """Find the descriptors by which a program manages its memory itself."""
    # The kernel registers a map with one userfaultfd only (EBUSY), and CRIU refuses a process that has one.
    return tuple(number for number, target in _list_descriptors(pid) if target == "anon_inode:[userfaultfd]")


def find_unseen_writer(pids: Iterable[int]) -> str:
    """Find what writes memory of these processes unseen by every tracker, as a clause; empty if nothing does."""
    # A page that a device was given to write is pinned. If the bits are reset before the device has written it, nothing
    # sets its bit again: the next dump would take the old page for the new one.
    for pid in pids:
        for why in _find_unseen_writers(pid):
            return f"PID {pid} has {why}; {_MISSED}"
    return ""


def _find_unseen_writers(pid: int) -> Iterator[str]:
    with suppress(OSError):
        maps = procfs.text(f"/proc/{pid}/maps")
        yield from (name for mark, name in _RINGS.items() if mark in maps)
    for number, target in _list_descriptors(pid):
        if target == "anon_inode:[io_uring]":
            yield "an io_uring"
        elif target.startswith(_DEVICES):
            yield f"{target} open"
        elif target.startswith("/") and open_flags(pid, number) & os.O_DIRECT:
            yield f"an O_DIRECT descriptor ({number}: {target})"
    # The ring or device that it is pinned for may belong to another process.
    with suppress(OSError):
        if pinned := status.read_bytes(pid, "VmPin"):
            yield f"{pinned >> 10} KiB of memory pinned for a device"


def _list_descriptors(pid: int) -> Iterator[tuple[int, str]]:
    # Number and name only: the tree is frozen meanwhile, and may have many.
    with suppress(OSError):
        yield from read_targets(pid)
