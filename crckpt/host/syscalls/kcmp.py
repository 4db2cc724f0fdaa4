"""Find out what processes share. Source: kcmp(2)."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from crckpt.host.proc import Descriptor, procfs
from crckpt.host.proc.fd import read_targets
from crckpt.host.syscalls.libc import syscall

# linux/kcmp.h
_KCMP_FILE: Final = 0
_KCMP_VM: Final = 1
_KCMP_EPOLL_TFD: Final = 7  # since Linux 4.13
# A line of an epoll's fdinfo: the number under which a file was added, which it may no longer have, and its inode.
_TARGET: Final = re.compile(r"^tfd:\s*(\d+)(?:.*\bino:([\da-f]+))?", re.MULTILINE)


class _Watched(NamedTuple):
    """A file that an epoll watches. `fd` is the number by which it was added, `at` counts those of that number."""

    fd: int
    at: int
    inode: int


def is_sharing_memory(one: int, other: int) -> bool:
    """Return whether two processes share all their memory; False if one has ended or the kernel has no kcmp."""
    return _is_same(one, other, _KCMP_VM, 0, 0)


def is_same_file(pid: int, descriptor: int, ours: int) -> bool:
    """Return whether a process's descriptor and ours are the same open file. False if the kernel has no kcmp."""
    return _is_same(os.getpid(), pid, _KCMP_FILE, ours, descriptor)


def find_escaped_epolls(descriptors: tuple[Descriptor, ...]) -> tuple[Descriptor, ...]:
    """Find epolls that watch a file which their process has closed, each in the first process that has it."""
    by_number = {(found.pid, found.fd): found for found in descriptors}
    epolls = [found for found in descriptors if found.target == "anon_inode:[eventpoll]"]
    suspects = {
        epoll: suspected
        for epoll in epolls
        if (suspected := [watched for watched in _find_watched(epoll) if not _has_number(epoll, watched, by_number)])
    }
    return tuple(
        epoll
        for epoll, suspected in suspects.items()
        # CRIU dumps an epoll once, in the first process that has it. A child that inherited it may have closed the
        # files.
        if not any(_is_same(epoll.pid, other.pid, _KCMP_FILE, epoll.fd, other.fd) for other in _before(epoll, epolls))
        # Twice: while the descriptors are compared, a server may close a connection and accept one by the same number.
        and any(_is_escaped(epoll, watched) and _is_escaped(epoll, watched) for watched in suspected)
    )


def find_sharers(held: Descriptor, inside: frozenset[int]) -> tuple[int, ...]:
    """Find other processes than those `inside` that have the same open file (inherited or received)."""
    found = []
    for pid in procfs.pids():
        # The same open file has the same target everywhere, so kcmp is needed for few descriptors.
        if pid not in inside and any(
            _is_same(held.pid, pid, _KCMP_FILE, held.fd, fd) for fd in _find_descriptors(pid, held.target)
        ):
            found.append(pid)
    return tuple(found)


def _find_descriptors(pid: int, target: str) -> Iterator[int]:
    with suppress(OSError):  # the process ends at the same time
        yield from (fd for fd, found in read_targets(pid) if found == target)


def _find_watched(epoll: Descriptor) -> Iterator[_Watched]:
    """Find what an epoll watches. One number may have been several files."""
    counts: Counter[int] = Counter()
    for number, inode in _TARGET.findall(epoll.info):
        fd = int(number)
        yield _Watched(fd, counts[fd], int(inode or "0", 16))
        counts[fd] += 1


def _has_number(epoll: Descriptor, watched: _Watched, by_number: dict[tuple[int, int], Descriptor]) -> bool:
    """Return whether the watched file still has the number by which it was added, or is watched no longer."""
    found = by_number.get((epoll.pid, watched.fd))
    if found is None:
        return False
    # The number may be of another file now. A server watches thousands of sockets: their inodes are faster to compare.
    if found.socket_inode and found.socket_inode == watched.inode:
        return True
    try:
        return _compare(epoll, watched, found.fd) == 0
    except OSError:
        return True


def _is_escaped(epoll: Descriptor, watched: _Watched) -> bool:
    """Return whether the epoll watches the file, and its process has no descriptor of it."""
    # ENOENT: the epoll watches it no longer.
    with suppress(OSError):
        answers = {_compare(epoll, watched, fd) for fd, _ in read_targets(epoll.pid)}
        # All None: the epoll itself has been closed.
        return 0 not in answers and answers != {None}
    return False


def _before(found: Descriptor, epolls: list[Descriptor]) -> Iterator[Descriptor]:
    return (other for other in itertools.takewhile(lambda one: one is not found, epolls))


def _compare(epoll: Descriptor, watched: _Watched, fd: int) -> int | None:
    """Compare a descriptor with a watched file: 0 if they are the same open file, None if the descriptor was closed.

    Raises OSError.
    """
    # struct kcmp_epoll_slot: the epoll, the number of the file in it, and which one of that number.
    slot = struct.pack("=III", epoll.fd, watched.fd, watched.at)
    try:
        return syscall("kcmp", epoll.pid, epoll.pid, _KCMP_EPOLL_TFD, fd, ctypes.create_string_buffer(slot))
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return None


def _is_same(one: int, other: int, kind: int, this: object, that: object) -> bool:
    # 0: the same. 1, 2 and 3: different. EBADF, ESRCH: one of them has gone.
    with suppress(OSError):
        return syscall("kcmp", one, other, kind, this, that) == 0
    return False
