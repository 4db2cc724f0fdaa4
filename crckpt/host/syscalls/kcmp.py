"""Find out what processes share. Source: kcmp(2)."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from crckpt.host.proc import Descriptor, procfs
from crckpt.host.proc.fd import read_targets
from crckpt.host.proc.status import read_status
from crckpt.host.syscalls.libc import syscall

# linux/kcmp.h
_KCMP_FILE: Final = 0
_KCMP_VM: Final = 1
_KCMP_FILES: Final = 2
_KCMP_FS: Final = 3
_KCMP_EPOLL_TFD: Final = 7  # since Linux 4.13
_LOOKS_FOR_S: Final = 1.0
_LOOKS_NEAR_FOR_S: Final = 5.0


def is_sharing_memory(one: int, other: int) -> bool:
    """Return whether two processes share all their memory; False if one has ended or the kernel has no kcmp."""
    return _is_same(one, other, _KCMP_VM, 0, 0)


def find_directory_sharers(pids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Group the processes that share their working directory, root and umask (CLONE_FS); none if there is no kcmp."""
    return _find_groups(pids, _KCMP_FS)


def find_table_sharers(pids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Group the processes that share their table of descriptors (CLONE_FILES); none if there is no kcmp."""
    return _find_groups(pids, _KCMP_FILES)


def _find_groups(pids: Sequence[int], kind: int) -> tuple[tuple[int, ...], ...]:
    """Group those of these processes that have the same one, two or more in a group, in the order given."""

    def compare(one: int, other: int) -> int:
        # 1: less, 2: greater. The order stays the same.
        return (0, -1, 1, 1)[syscall("kcmp", one, other, kind, 0, 0)]

    with suppress(OSError):  # one of them ends now: the next look finds the others
        places = {pid: place for place, pid in enumerate(pids)}
        ordered = sorted(pids, key=functools.cmp_to_key(compare))
        groups: list[list[int]] = []
        for pid in ordered:
            if groups and compare(groups[-1][0], pid) == 0:
                groups[-1].append(pid)
            else:
                groups.append([pid])
        return tuple(tuple(sorted(group, key=places.__getitem__)) for group in groups if len(group) > 1)
    return ()


def has_own_directories(tid: int, pid: int) -> bool:
    """Return whether a thread shares neither working directory, root nor umask with its process's first thread."""
    return _is_other(tid, pid, _KCMP_FS)


def has_own_descriptors(tid: int, pid: int) -> bool:
    """Return whether a thread has another table of descriptors than its process's first thread."""
    return _is_other(tid, pid, _KCMP_FILES)


def is_same_file(pid: int, descriptor: int, ours: int) -> bool:
    """Return whether a process's descriptor and ours are the same open file. False if the kernel has no kcmp."""
    return _is_same(os.getpid(), pid, _KCMP_FILE, ours, descriptor)


def order_files(one: int, number: int, other: int, other_number: int) -> int:
    """Order two open files: 0 if they are the same, -1 or 1 if not, or if one of them has gone."""
    with suppress(OSError):
        # 1: less. 2: greater. 3: different.
        return {0: 0, 1: -1}.get(syscall("kcmp", one, other, _KCMP_FILE, number, other_number), 1)
    return 1


def is_watched(pid: int, epoll: int, number: int, at: int, descriptor: int) -> bool | None:
    """Return whether a process's descriptor is the file that its `epoll` watches; None if it was closed.

    That file was added by `number`, as `at` of those of that number. Raises OSError if it is watched no longer.
    """
    # struct kcmp_epoll_slot
    slot = struct.pack("=III", epoll, number, at)
    try:
        return syscall("kcmp", pid, pid, _KCMP_EPOLL_TFD, descriptor, ctypes.create_string_buffer(slot)) == 0
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return None


def find_sharers(held: Sequence[Descriptor], inside: frozenset[int]) -> Iterator[tuple[Descriptor, int]]:
    """Find other processes than those `inside` that have one of these open files (inherited or received).

    Looks at all processes once, and first at those of the users of `held` and of root, for some seconds. Anybody may
    have as many descriptors as they like: others are looked at for a second only.
    """
    by_target: dict[str, list[Descriptor]] = {}
    for each in held:
        by_target.setdefault(each.target, []).append(each)
    if not by_target:
        return
    near = {0, *(user for pid in {each.pid for each in held} if (user := _user_of(pid)) is not None)}
    others = sorted((_user_of(pid) not in near, pid) for pid in procfs.pids() if pid not in inside)
    began = time.monotonic()
    for is_far, pid in others:
        end = began + (_LOOKS_FOR_S if is_far else _LOOKS_NEAR_FOR_S)
        found: set[tuple[int, int]] = set()
        with suppress(OSError):  # the process ends at the same time
            for fd, target in read_targets(pid):
                if time.monotonic() > end:
                    return
                # The same open file has the same target everywhere, so kcmp is needed for few descriptors.
                for each in by_target.get(target, ()):
                    one = each.pid, each.fd
                    if one not in found and _is_same(each.pid, pid, _KCMP_FILE, each.fd, fd):
                        found.add(one)
                        yield each, pid


def _user_of(pid: int) -> int | None:
    # Not the owner of /proc/PID: a process can make that root (PR_SET_DUMPABLE).
    with suppress(OSError):
        return int(read_status(pid)["Uid"].split()[0])
    return None


def _is_same(one: int, other: int, kind: int, this: object, that: object) -> bool:
    # 0: the same. 1, 2 and 3: different. EBADF, ESRCH: one of them has gone.
    with suppress(OSError):
        return syscall("kcmp", one, other, kind, this, that) == 0
    return False


def _is_other(one: int, other: int, kind: int) -> bool:
    # If one has ended, or the kernel has no kcmp, nothing is known to differ.
    with suppress(OSError):
        return syscall("kcmp", one, other, kind, 0, 0) != 0
    return False
