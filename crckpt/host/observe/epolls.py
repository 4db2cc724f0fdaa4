"""Find epolls that CRIU cannot make again: the process that would make one lacks a file that it watches.

CRIU dumps an epoll once, in the first process that has it, and names what it watches by that process's numbers. It
makes the epoll again in the process with the lowest PID. Source: criu/eventpoll.c, criu/files.c.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec import Struct

from crckpt.host.proc import Descriptor
from crckpt.host.proc.fd import read_targets
from crckpt.host.syscalls.kcmp import group_same, is_watched, order_files

_EPOLL: Final = "anon_inode:[eventpoll]"
_LOOKS: Final = 5
_COMPARES_FOR_S: Final = 1.0
# CRIU takes about half a minute for so many: one epoll with 31,600 files.
_MOST_COMPARISONS: Final = 10**9
# A line of an epoll's fdinfo: the number under which a file was added, which it may no longer have, and its inode.
_TARGET: Final = re.compile(r"^tfd:\s*(\d+)(?:.*\bino:([\da-f]+))?", re.MULTILINE)


class LostEpoll(Struct, frozen=True):
    """An epoll that CRIU cannot make again, by the number in the first process that has it.

    `builder` is the process that would make it and lacks a file that it watches; 0 if `pid` itself has closed one.
    """

    pid: int
    fd: int
    builder: int = 0


class _LateError(Exception):
    """The time for comparisons is over."""


class _Watched(NamedTuple):
    """A file that an epoll watches. `fd` is the number by which it was added, `at` counts those of that number."""

    fd: int
    at: int
    inode: int


class _Epoll(NamedTuple):
    """An epoll in the first process that has it, and the PID of the process that makes it again.

    Nothing is compared any more after the time `end`: then _LateError is raised.
    """

    first: Descriptor
    builder: int
    end: float

    def has(self, watched: _Watched, fd: int) -> bool | None:
        if time.monotonic() > self.end:
            raise _LateError
        return is_watched(self.first.pid, self.first.fd, watched.fd, watched.at, fd)


def find_slow_epolls(descriptors: Iterable[Descriptor]) -> tuple[Descriptor, int] | None:
    """Find the largest epoll, and how many files all of them watch, if CRIU takes minutes to save them.

    For each file that an epoll watches CRIU has the kernel look through all of them (criu/eventpoll.c, KCMP_EPOLL_TFD).
    """
    # Those with the same text may be one epoll.
    by_text: dict[str, list[Descriptor]] = {}
    for found in descriptors:
        if found.target == _EPOLL:
            by_text.setdefault(found.info, []).append(found)
    counts = {text: text.count("\ntfd:") for text in by_text}
    if sum(counts[text] ** 2 * len(same) for text, same in by_text.items()) <= _MOST_COMPARISONS:
        return None
    epolls = [(same[0], counts[text]) for text, alike in by_text.items() for same in group_same(alike, _order)]
    if sum(count**2 for _, count in epolls) <= _MOST_COMPARISONS:
        return None
    return max(epolls, key=lambda each: each[1])[0], sum(count for _, count in epolls)


def _order(one: Descriptor, other: Descriptor) -> int:
    return order_files(one.pid, one.fd, other.pid, other.fd)


def find_lost_epolls(
    descriptors: tuple[Descriptor, ...], numbers: Mapping[int, int]
) -> tuple[tuple[LostEpoll, ...], tuple[Descriptor, ...]]:
    """Find them in a tree's descriptors, in the order of its processes, and those of which that is not known.

    `numbers`: the PIDs that a restore gives.
    Takes a second or two at most: the more an epoll watches, the longer the kernel takes for each file.
    """
    end = time.monotonic() + _COMPARES_FOR_S
    epolls = [found for found in descriptors if found.target == _EPOLL]
    by_number = {(found.pid, found.fd): found for found in descriptors}
    lost: list[LostEpoll] = []
    unexamined: list[Descriptor] = []

    def order(one: Descriptor, other: Descriptor) -> int:
        if time.monotonic() > end:
            raise _LateError
        return order_files(one.pid, one.fd, other.pid, other.fd)

    try:
        groups = group_same(epolls, order) if len({each.pid for each in epolls}) > 1 else [[each] for each in epolls]
    except _LateError:
        return (), tuple(epolls)
    for same in groups:
        builder = min((each.pid for each in same), key=lambda pid: numbers.get(pid, pid))
        epoll = _Epoll(same[0], builder, end)
        try:
            # One number may have been several files.
            counts: Counter[int] = Counter()
            watched = []
            for number, inode in _TARGET.findall(epoll.first.info):
                watched.append(_Watched(int(number), counts[int(number)], int(inode or "0", 16)))
                counts[int(number)] += 1
            kept = frozenset(each for each in watched if _is_kept(epoll, each, by_number))
            if len(kept) < len(watched):
                # While descriptors are compared, a server may close a connection and accept one by the same number.
                looks = (_find_lost(epoll, watched, kept, by_number) for _ in range(_LOOKS))
                found = tuple(itertools.takewhile(lambda each: each is not None, looks))
                lost.extend(each for each in found[_LOOKS - 1 :] if each is not None)
        except _LateError:
            unexamined.append(epoll.first)
    return tuple(lost), tuple(unexamined)


def _is_kept(epoll: _Epoll, watched: _Watched, by_number: Mapping[tuple[int, int], Descriptor]) -> bool:
    """Return whether the file still has its number in both processes, or is watched no longer."""
    found, other = by_number.get((epoll.first.pid, watched.fd)), by_number.get((epoll.builder, watched.fd))
    if found is None or other is None or found.target != other.target:
        return False
    # The number may be of another file now. A server watches thousands of sockets: their inodes are faster to compare.
    if found.socket_inode and found.socket_inode == watched.inode:
        return True
    if found is not other and order_files(found.pid, found.fd, other.pid, other.fd):
        return False
    try:
        return bool(epoll.has(watched, found.fd))
    except OSError:
        return True


def _find_lost(
    epoll: _Epoll,
    watched: Sequence[_Watched],
    kept: frozenset[_Watched],
    by_number: Mapping[tuple[int, int], Descriptor],
) -> LostEpoll | None:
    """Look at what is not `kept` as it is now."""
    first, builder = epoll.first, epoll.builder
    used = {each.fd for each in kept}
    for each in watched:
        # An OSError: it is watched no longer.
        with suppress(OSError):
            if each in kept:
                continue
            targets = dict(read_targets(first.pid))
            answers = {fd: epoll.has(each, fd) for fd in targets}
            if set(answers.values()) == {None}:  # the epoll itself has been closed
                continue
            numbers = [fd for fd, is_same in answers.items() if is_same]
            # CRIU adds the file by another number that it has in the first process: one number only once, and not if a
            # process before that has the file, too.
            fd = each.fd if each.fd in numbers else min(numbers, default=-1)
            if fd < 0 or fd in used or (fd != each.fd and _is_held_before(first.pid, fd, targets[fd], by_number)):
                return LostEpoll(first.pid, first.fd)
            used.add(fd)
            if builder != first.pid and order_files(first.pid, fd, builder, fd):
                return LostEpoll(first.pid, first.fd, builder)
    return None


def _is_held_before(pid: int, fd: int, target: str, by_number: Mapping[tuple[int, int], Descriptor]) -> bool:
    """Return whether a process before this one has the same open file."""
    before = itertools.takewhile(lambda found: found.pid != pid, by_number.values())
    return any(found.target == target and not order_files(pid, fd, found.pid, found.fd) for found in before)
