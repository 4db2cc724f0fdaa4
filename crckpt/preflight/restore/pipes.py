"""Check the pipes of a checkpoint before a restore."""

from __future__ import annotations

import os
from collections.abc import Iterator

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.images.pipes import Pipe
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.plan import PlannedRestore

_STDOUT, _STDERR = 1, 2


class OutsidePipe(Struct, frozen=True):
    """A pipe into which the tree writes and from which a process outside read.

    `errors`: the tree has it only as standard error (fd 2). `polled`: an epoll watches it. A pipe that the tree reads
    is none: CRIU makes it again with the bytes in it, and nobody can write to it.
    """

    inode: int
    errors: bool
    polled: bool = False


def judge_pipes(planned: PlannedRestore, outside: tuple[OutsidePipe, ...]) -> Iterator[Finding]:
    """Find a pipe that would become crckpt's output, if that is a socket."""
    if any((_STDERR if pipe.errors else _STDOUT) in planned.sockets for pipe in outside):
        yield cause("output-socket").finding()


def outside_pipes(planned: PlannedRestore) -> tuple[OutsidePipe, ...]:
    """Return the pipes that the tree wrote to and a process outside read."""
    tree = planned.tree
    # Go through all files: some wait in a socket, and no process has them open.
    pipes = [file for file in tree.files if isinstance(file, Pipe)]
    polled = {pipe.pipe_id for pipe in pipes if pipe.id in tree.polled}
    ends: dict[int, set[int]] = {}
    for pipe in pipes:
        ends.setdefault(pipe.pipe_id, set()).add(pipe.flags & os.O_ACCMODE)
    numbers: dict[int, set[int]] = {}
    for opened in (opened for process in tree.processes for opened in process.descriptors):
        if isinstance(opened.file, Pipe):
            numbers.setdefault(opened.file.pipe_id, set()).add(opened.fd)
    return tuple(
        OutsidePipe(inode, errors=numbers.get(inode) == {_STDERR}, polled=inode in polled)
        for inode, found in ends.items()
        # Where a reader is not known there was one: the program must not be ended by SIGPIPE.
        if found == {os.O_WRONLY} and inode not in planned.closed_pipes
    )


def two_way_pipes(tree: ImageTree) -> frozenset[int]:
    """Return the inodes of pipes with a descriptor both to read and to write."""
    pipes = (file for file in tree.files if isinstance(file, Pipe))
    return frozenset(pipe.pipe_id for pipe in pipes if pipe.flags & os.O_ACCMODE == os.O_RDWR)
