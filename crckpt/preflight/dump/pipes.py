"""Check the pipes of a tree before a dump."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from crckpt.causes import Finding, cause
from crckpt.host.observe.pipes import group_by_pipe, is_read_end, is_write_end
from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Descriptor

# Of pipes that the tree reads, and as many named ones: NR_PIPES_WITH_DATA, criu/include/pipes.h. Empty ones count.
_MOST_PIPES = 1024


def find_blockers(observed: Observed) -> Iterator[Finding]:
    """Find more pipes than CRIU can save."""
    read = tuple(filter(is_read_end, observed.descriptors))
    # A pipe's target is unique; a named pipe's target is its path.
    named = {end.target for end in read if stat.S_ISFIFO(end.mode) and not end.target.startswith("pipe:[")}
    for count, what in ((len(group_by_pipe(read)), "pipes"), (len(named), "named pipes")):
        if count > _MOST_PIPES:
            yield cause("pipes-too-many").finding(count=count, what=what)


def find_warnings(observed: Observed) -> Iterator[Finding]:
    """Find pipes that connect the tree with a process outside."""
    for end in _find_outside(observed):
        yield cause("outside-pipe" if is_write_end(end) else "outside-pipe-read").finding(fd=end.fd, pid=end.pid)


def _find_outside(observed: Observed) -> Iterator[Descriptor]:
    """Find one descriptor of each pipe of which the tree holds one end and another process the other."""
    for inode, ends in group_by_pipe(observed.descriptors).items():
        is_inside = any(map(is_read_end, ends)) and any(map(is_write_end, ends))
        # If nobody has the other end, the restored pipe is as it was.
        if not is_inside and inode not in observed.closed_pipes:
            yield ends[0]
