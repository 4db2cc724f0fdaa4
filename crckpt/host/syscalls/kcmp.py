"""Find out what processes share. Source: kcmp(2)."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from crckpt.host.proc import Descriptor, procfs
from crckpt.host.proc.fd import read_targets
from crckpt.host.syscalls.libc import syscall

# linux/kcmp.h
_KCMP_FILE: Final = 0
_KCMP_VM: Final = 1
_KCMP_EPOLL_TFD: Final = 7
_TARGET: Final = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)


def is_sharing_memory(one: int, other: int) -> bool:
    """Return whether two processes share all their memory; False if one has ended or the kernel has no kcmp."""
    return _is_same(one, other, _KCMP_VM, 0, 0)


def is_same_file(pid: int, descriptor: int, ours: int) -> bool:
    """Return whether a process's descriptor and ours are the same open file. False if the kernel has no kcmp."""
    return _is_same(os.getpid(), pid, _KCMP_FILE, ours, descriptor)


def find_escaped_epolls(descriptors: tuple[Descriptor, ...]) -> tuple[Descriptor, ...]:
    """Find epolls that watch a file which their process has closed, each in the first process that has it."""
    by_process: dict[int, list[int]] = {}
    for found in descriptors:
        by_process.setdefault(found.pid, []).append(found.fd)
    epolls = [found for found in descriptors if found.target == "anon_inode:[eventpoll]"]
    suspects = [found for found in epolls if not set(_targets(found)) <= set(by_process[found.pid])]
    return tuple(
        found
        for found in suspects
        if not any(_is_same(found.pid, other.pid, _KCMP_FILE, found.fd, other.fd) for other in _before(found, epolls))
        and any(
            not any(_is_watching(found, target, at, fd) for fd in by_process[found.pid])
            for target, at in _number_equals(_targets(found))
        )
    )


def find_sharers(held: Descriptor, inside: frozenset[int]) -> tuple[int, ...]:
    """Find other processes than those `inside` that have the same open file (inherited or received)."""
    found = []
    for pid in procfs.pids():
        if pid not in inside and any(
            _is_same(held.pid, pid, _KCMP_FILE, held.fd, fd) for fd in _find_descriptors(pid, held.target)
        ):
            found.append(pid)
    return tuple(found)


def _find_descriptors(pid: int, target: str) -> Iterator[int]:
    with suppress(OSError):
        yield from (fd for fd, found in read_targets(pid) if found == target)


def _targets(epoll: Descriptor) -> list[int]:
    return [int(target) for target in _TARGET.findall(epoll.info)]


def _number_equals(targets: list[int]) -> Iterator[tuple[int, int]]:
    """Number equal targets: one descriptor number may have been several files."""
    return ((target, targets[:at].count(target)) for at, target in enumerate(targets))


def _before(found: Descriptor, epolls: list[Descriptor]) -> Iterator[Descriptor]:
    return (other for other in itertools.takewhile(lambda one: one is not found, epolls))


def _is_watching(epoll: Descriptor, target: int, at: int, fd: int) -> bool:
    slot = struct.pack("=III", epoll.fd, target, at)
    return _is_same(epoll.pid, epoll.pid, _KCMP_EPOLL_TFD, fd, ctypes.create_string_buffer(slot))


def _is_same(one: int, other: int, kind: int, this: object, that: object) -> bool:
    with suppress(OSError):
        return syscall("kcmp", one, other, kind, this, that) == 0
    return False
