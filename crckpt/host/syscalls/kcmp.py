"""Find out what processes share. Source: kcmp(2)."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from crckpt.host.proc import Descriptor, procfs
from crckpt.host.proc.fd import read_targets
from crckpt.host.proc.status import read_status
from crckpt.host.syscalls.libc import syscall

# linux/kcmp.h
_KCMP_FILE: Final = 0
_KCMP_VM: Final = 1
_KCMP_EPOLL_TFD: Final = 7  # since Linux 4.13
_LOOKS_FOR_S: Final = 1.0
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


def find_sharers(held: Sequence[Descriptor], inside: frozenset[int]) -> Iterator[tuple[Descriptor, int]]:
    """Find other processes than those `inside` that have one of these open files (inherited or received).

    Looks at all processes once, and first at those of the users of `held` and of root. Anybody may have as many
    descriptors as they like: others are looked at for a second only.
    """
    by_target: dict[str, list[Descriptor]] = {}
    for each in held:
        by_target.setdefault(each.target, []).append(each)
    if not by_target:
        return
    near = {0, *(user for pid in {each.pid for each in held} if (user := _user_of(pid)) is not None)}
    others = sorted((_user_of(pid) not in near, pid) for pid in procfs.pids() if pid not in inside)
    end = time.monotonic() + _LOOKS_FOR_S
    for is_far, pid in others:
        found: set[tuple[int, int]] = set()
        with suppress(OSError):  # the process ends at the same time
            for fd, target in read_targets(pid):
                if is_far and time.monotonic() > end:
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
