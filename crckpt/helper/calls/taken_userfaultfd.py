"""Take a userfaultfd of another process: the process makes one, we duplicate it, and the process closes its own.

One that is pinned ends with the process, and not with those who hold its descriptors: if the last descriptor is closed,
the kernel supplies zeros for all pages that are still missing. So the process itself waits for an event of it that
never comes, in an asynchronous context (io_submit(2), IOCB_CMD_POLL) of its own, until its address space ends. The
process has no descriptor of it, which would give it the right to handle faults of the kernel. Children do not inherit
the context.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.proc import Identity
from crckpt.host.proc.maps import read_maps
from crckpt.host.process.pidfd import borrow
from crckpt.host.syscalls import ptrace
from crckpt.host.syscalls.userfaultfd import MissingPages

# struct iocb (linux/aio_abi.h): no data, IOCB_CMD_POLL, the descriptor, and no events but errors.
_IOCB: Final = struct.Struct("<QIIHhIQQqQII")
_POLL: Final = 5
# What the calls read: the context, which io_setup writes; the address of the iocb; the iocb.
_IOCB_AT: Final = 16
_DONTFORK: Final = 10
_MOST_ERRNO: Final = 4095


# x86-64 and 32-bit
_NUMBERS: Final = {
    "userfaultfd": (323, 374),
    "close": (3, 6),
    "mmap": (9, 192),
    "munmap": (11, 91),
    "madvise": (28, 219),
    "io_setup": (206, 245),
    "io_destroy": (207, 246),
    "io_submit": (209, 248),
}
_USER_MODE_ONLY: Final = 1
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY


def take_one(
    process: Identity, flags: int = _FLAGS, use: Callable[[ptrace.StoppedThread, int, int], None] | None = None
) -> int:
    """Take a userfaultfd of a process; before that loses its own, `use` gets both.

    Raises OSError, and HostCannot, whose message leaves it to the caller to name the process.
    """
    pid = process.pid
    with ptrace.stopped(pid, identity=process) as thread:
        theirs = thread.system_call(_NUMBERS["userfaultfd"][thread.is_compat], flags, within_s=ptrace.STOPS_WITHIN_S)
        if theirs < 0:
            if theirs == -errno.EMFILE:
                raise HostCannot(
                    "it has no free file descriptor (RLIMIT_NOFILE)",
                    hint=f"raise it: prlimit --pid {pid} --nofile=N",
                )
            raise HostCannot(f"userfaultfd is forbidden to it: {os.strerror(-theirs)}")
        try:
            ours = borrow(pid, theirs)
            if use is not None:
                use(thread, theirs, ours)
        finally:
            # CRIU refuses a program that has one. Another thread may have put another file in its place (dup2): check
            # this right before closing.
            if _is_userfaultfd(thread.tid, theirs):
                thread.system_call(_NUMBERS["close"][thread.is_compat], theirs)
    if not _is_userfaultfd(os.getpid(), ours):
        raise HostCannot("another thread has taken the number of crckpt's descriptor", hint="try again")
    return ours


def _is_userfaultfd(tid: int, descriptor: int) -> bool:
    """Return whether a descriptor is one, in the table of this thread: it may have its own table."""
    with suppress(OSError):
        return str(Path(f"/proc/{tid}/fd/{descriptor}").readlink()) == "anon_inode:[userfaultfd]"
    return False


def close_in(process: Identity, descriptor: int) -> None:
    """Close a userfaultfd of a process. Raises HostCannot, OSError."""
    with ptrace.stopped(process.pid, identity=process) as thread:
        if _is_userfaultfd(thread.tid, descriptor):
            thread.system_call(_NUMBERS["close"][thread.is_compat], descriptor, within_s=ptrace.STOPS_WITHIN_S)


def take_pinned(process: Identity, flags: int) -> tuple[MissingPages, int]:
    """Take the missing pages of a process, and what `unpin` needs. Raises HostCannot, OSError."""
    found: list[tuple[MissingPages, int]] = []

    def pin(thread: ptrace.StoppedThread, theirs: int, ours: int) -> None:
        try:
            # Before, it would report an error to the process.
            missing = MissingPages(ours)
            found.append((missing, _pin(process.pid, thread, theirs)))
        except BaseException:
            os.close(ours)
            raise

    take_one(process, flags, pin)
    return found[0]


def unpin(process: Identity, context: int) -> None:
    """Let the userfaultfd of a process end with its descriptors. Takes some 30 ms. Raises HostCannot, OSError."""
    with ptrace.stopped(process.pid, identity=process) as thread:
        _call(thread, "io_destroy", context)


def _pin(pid: int, thread: ptrace.StoppedThread, descriptor: int) -> int:
    # Not on its stack: what is written there would seem to be filled.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    place = _call(thread, "mmap", 0, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    try:
        request = _IOCB.pack(0, 0, 0, _POLL, 0, descriptor, 0, 0, 0, 0, 0, 0)
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(place)
            memory.write(struct.pack("<2Q", 0, place + _IOCB_AT) + request)
            _call(thread, "io_setup", 1, place)
            memory.seek(place)
            (context,) = struct.unpack("<Q", memory.read(8))
        try:
            _call(thread, "io_submit", context, 1, place + 8)
            length = next((each.end - each.start for each in read_maps(pid) if each.start == context), 0)
            _call(thread, "madvise", context, length, _DONTFORK)
        except OSError:
            _call(thread, "io_destroy", context)
            raise
    finally:
        _call(thread, "munmap", place, mmap.PAGESIZE)
    return int(context)


def _call(thread: ptrace.StoppedThread, name: str, *arguments: int) -> int:
    result = thread.system_call(_NUMBERS[name][thread.is_compat], *arguments, within_s=ptrace.STOPS_WITHIN_S)
    if -_MOST_ERRNO <= result < 0:
        raise OSError(-result, os.strerror(-result))
    return result & 0xFFFFFFFF if thread.is_compat else result
