"""Read the ends of pipes that a tree has open, and find pipes whose other end no process has.

The kernel does not report which process has the other end. poll(2) reports whether one has, even in the queue of a
socket: POLLHUP at the read end, POLLERR at the write end. Source: fs/pipe.c, pipe_poll.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from crckpt.host.opened import opened, poll_now
from crckpt.host.proc import Descriptor
from crckpt.host.process.pidfd import borrow


def is_read_end(end: Descriptor) -> bool:
    """Return whether a pipe can be read there."""
    return end.flags & os.O_ACCMODE != os.O_WRONLY


def is_write_end(end: Descriptor) -> bool:
    """Return whether a pipe can be written to there."""
    return end.flags & os.O_ACCMODE != os.O_RDONLY


def group_by_pipe(descriptors: Iterable[Descriptor]) -> dict[int, tuple[Descriptor, ...]]:
    """Group descriptors by the inode of their pipe, in the order given. Skip named pipes."""
    found: dict[int, tuple[Descriptor, ...]] = {}
    for each in descriptors:
        inode = each.target.removeprefix("pipe:[").removesuffix("]")
        if each.target.startswith("pipe:[") and inode.isdecimal():
            found[int(inode)] = (*found.get(int(inode), ()), each)
    return found


def make_filled_pipe(size: int, content: bytes) -> tuple[int, int]:
    """Make a pipe that holds `size` bytes (0: the default) and has `content` in it; return both ends.

    The caller closes them. Raises OSError if we may not make it so large.
    """
    with ExitStack() as undo:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for end in (reader, writer):
            undo.callback(os.close, end)
        if size:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, size)
        # No process reads: what does not fit now never will.
        if content and os.write(writer, content) < len(content):
            raise OSError(errno.ENOSPC, "a pipe holds less than it did")
        undo.pop_all()
    return reader, writer


def find_closed_pipes(descriptors: Iterable[Descriptor]) -> frozenset[int]:
    """Find the inodes of pipes whose other end no process has, in the tree or elsewhere.

    Skip a process that has just closed its end, or that we may not inspect.
    """
    return frozenset(inode for inode, ends in group_by_pipe(descriptors).items() if _is_closed(inode, ends))


def _is_closed(inode: int, ends: tuple[Descriptor, ...]) -> bool:
    # Write ends first: if the tree writes, the question is whether anybody reads.
    for end in sorted(ends, key=is_read_end):
        with suppress(OSError), opened(borrow(end.pid, end.fd)) as borrowed:
            # The number may belong to another file by now.
            if os.fstat(borrowed).st_ino == inode:
                return bool(poll_now(borrowed) & (select.POLLERR | select.POLLHUP))
    return False
