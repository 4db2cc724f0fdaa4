"""Borrow descriptors of a live process. It does not notice. Source: pidfd_getfd(2)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from crckpt.host.syscalls.libc import syscall


def borrow(pid: int, descriptor: int) -> int:
    """Duplicate a descriptor of a process; the caller closes it. Raises OSError."""
    process = os.pidfd_open(pid)
    try:
        # Linux 5.6. It needs the rights of ptrace(2), but stops nothing.
        return syscall("pidfd_getfd", process, descriptor, 0)
    finally:
        os.close(process)


def borrow_each(pid: int, descriptors: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Duplicate descriptors one after the other: (number in the process, ours). Skip those that we may not have.

    Ours is closed when the next one is asked for.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        for descriptor in descriptors:
            try:
                borrowed = syscall("pidfd_getfd", process, descriptor, 0)
            except OSError:
                continue
            # Hold it for a moment only: while we have it, a pipe gets no end of file, and a closed port stays in use.
            try:
                yield descriptor, borrowed
            finally:
                os.close(borrowed)
    finally:
        os.close(process)
