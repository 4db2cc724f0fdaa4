"""Find out what processes share. Source: kcmp(2)."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from crckpt.host.budget import Budget
from crckpt.host.proc import Descriptor
from crckpt.host.proc.fd import read_targets
from crckpt.host.proc.status import look_at_all, real_user
from crckpt.host.syscalls.libc import syscall

# linux/kcmp.h
FILE, VM, FILES, FS = 0, 1, 2, 3
"""What is compared: open files, all memory, tables of descriptors, directories with umask."""
_EPOLL_TFD: Final = 7  # since Linux 4.13

Entry = TypeVar("Entry")


def is_same_file(pid: int, descriptor: int, ours: int) -> bool:
    """Return whether a process's descriptor and ours are the same open file. False if the kernel has no kcmp."""
    return compare(os.getpid(), pid, FILE, ours, descriptor) == 0


def order_files(one: int, number: int, other: int, other_number: int) -> int:
    """Order two open files: 0 if they are the same, -1 or 1 if not, or if one of them has gone."""
    found = compare(one, other, FILE, number, other_number)
    return 1 if found is None else (0, -1, 1, 1)[found]


def compare(one: int, other: int, kind: int, this: int = 0, that: int = 0) -> int | None:
    """Compare what two threads have of a kind. `this` and `that` are the descriptors of open files.

    0: the same. 1: less, 2: greater, 3: different. None: one of them has gone, or the kernel has no kcmp.
    """
    with suppress(OSError):
        return syscall("kcmp", one, other, kind, this, that)
    return None


def find_groups(pids: Sequence[int], kind: int) -> list[list[int]]:
    """Group the processes that share what they have of a kind (CLONE_FILES, CLONE_FS); none if there is no kcmp."""
    with suppress(OSError):  # one of them ends now: the next look finds the others
        groups = group_same(pids, lambda one, other: (0, -1, 1, 1)[syscall("kcmp", one, other, kind, 0, 0)])
        return [group for group in groups if len(group) > 1]
    return []


def group_same(entries: Iterable[Entry], order: Callable[[Entry, Entry], int]) -> list[list[Entry]]:
    """Group entries for which `order` says 0, those of a group in the order given."""
    groups: list[list[Entry]] = []
    # Sorted, so that not all are compared with all.
    for each in sorted(entries, key=functools.cmp_to_key(order)):
        if groups and not order(groups[-1][0], each):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def is_watched(pid: int, epoll: int, number: int, at: int, descriptor: int) -> bool | None:
    """Return whether a process's descriptor is the file that its `epoll` watches; None if it was closed.

    That file was added by `number`, as `at` of those of that number. Raises OSError if it is watched no longer.
    """
    # struct kcmp_epoll_slot
    slot = struct.pack("=III", epoll, number, at)
    try:
        return syscall("kcmp", pid, pid, _EPOLL_TFD, descriptor, ctypes.create_string_buffer(slot)) == 0
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return None


def find_sharers(held: Sequence[Descriptor], inside: frozenset[int]) -> tuple[tuple[Descriptor, int], ...]:
    """Find other processes than those `inside` that have one of these open files (inherited or received).

    Looks at all processes once, and first at those of the users of `held` and of root, for some seconds. Anybody may
    have as many descriptors as they like: others are looked at for a second only.
    """
    by_target: dict[str, list[Descriptor]] = {}
    for each in held:
        by_target.setdefault(each.target, []).append(each)
    if not by_target:
        return ()
    near = {0, *(user for pid in {each.pid for each in held} if (user := real_user(pid)) is not None)}
    sharers: dict[tuple[int, int, int], tuple[Descriptor, int]] = {}

    def look(pid: int, budget: Budget) -> None:
        with suppress(OSError):  # the process ends at the same time
            for fd, target in read_targets(pid) if pid not in inside else ():
                if budget.is_spent():
                    return
                # The same open file has the same target everywhere, so kcmp is needed for few descriptors.
                for each in by_target.get(target, ()):
                    one = each.pid, each.fd, pid
                    if one not in sharers and order_files(each.pid, each.fd, pid, fd) == 0:
                        sharers[one] = each, pid

    look_at_all(near, look)
    return tuple(sharers.values())
