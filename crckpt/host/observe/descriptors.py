"""Find descriptors that a restore would not make as they are: owners of signals, a /dev/tty, ends of pipes.

The kernel does not report which process has the other end of a pipe. poll(2) reports whether one has, even in the queue
of a socket: POLLHUP at the read end, POLLERR at the write end. Source: fs/pipe.c, pipe_poll.

/proc does not show the owner. CRIU sets it before it makes threads (criu/files.c, restore_fown). Source: fcntl(2),
F_GETOWN_EX.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.opened import opened, poll_now
from crckpt.host.proc import Descriptor, Process
from crckpt.host.proc.status import Stat, read_stat, read_status
from crckpt.host.process.pidfd import borrow, borrow_each

_F_GETOWN_EX: Final = 16
_OWNER: Final = struct.Struct("=2i")  # struct f_owner_ex: type, pid
_THREAD, _GROUP = 0, 2  # F_OWNER_TID, F_OWNER_PGRP

# Source: Documentation/admin-guide/devices.txt.
_CURRENT: Final = os.makedev(5, 0)
_MASTERS: Final = os.makedev(5, 2)
_SLAVES: Final = range(136, 144)


class LostOwner(Struct, frozen=True):
    """A descriptor whose signals go to `owner`: a thread that is not the first of its process, or one outside the tree.

    `owner` is then a process or, with `is_group`, a process group.
    """

    pid: int
    fd: int
    owner: int
    is_thread: bool = False
    is_group: bool = False


def find_lost_owners(tree: proc.Tree, descriptors: Iterable[Descriptor]) -> tuple[LostOwner, ...]:
    """Find one descriptor of each such owner, among those that are likely to have one."""
    asked: dict[int, list[int]] = {}
    sockets: set[int] = set()
    for found in descriptors:
        # A descriptor of a socket has the owner of all others. To close a file of a network share may take long, and
        # files have owners only for leases.
        is_file = stat.S_ISREG(found.mode) or stat.S_ISDIR(found.mode)
        if found.flags & os.O_PATH or found.socket_inode in sockets or (is_file and "LEASE" not in found.info):
            continue
        sockets.update({found.socket_inode} - {0})
        asked.setdefault(found.pid, []).append(found.fd)
    groups = {process.pgid for process in tree.processes}
    lost: dict[tuple[int, int], LostOwner] = {}
    for pid, numbers in asked.items():
        for fd, ours in borrow_each(pid, numbers):
            with suppress(OSError):  # the owner has ended
                kind, owner = _OWNER.unpack(fcntl.fcntl(ours, _F_GETOWN_EX, _OWNER.pack(0, 0)))
                # A restore makes a group again whose leader has ended. 0: it has none, or that has ended.
                is_made_again = kind == _GROUP and owner in groups and proc.start_time(owner) is None
                if not owner or (kind, owner) in lost or is_made_again:
                    continue
                leader = owner if kind == _GROUP else int(read_status(owner)["Tgid"])
                is_inside = leader in tree.pids or tree.root.pid in proc.ancestors(leader)
                if not is_inside or (kind == _THREAD and leader != owner):
                    lost[kind, owner] = LostOwner(pid, fd, owner, is_thread=is_inside, is_group=kind == _GROUP)
    return tuple(lost.values())


def is_pseudo_terminal(device: int) -> bool:
    """Return whether a character device is a side of a pseudo terminal."""
    return device == _MASTERS or os.major(device) in _SLAVES


def find_unsaved_current(processes: Sequence[Process], descriptors: Iterable[Descriptor]) -> tuple[Descriptor, ...]:
    """Find the /dev/tty, of processes in the order of CRIU, that CRIU refuses (criu/tty.c, tty_verify_ctty).

    CRIU looks at the first one only. Of all pseudo terminals that are open on the same session, with the session's
    leader in the foreground, the first one must be open in the same process. A master counts, too.
    """
    by_pid: dict[int, list[Descriptor]] = {}
    for found in descriptors:
        by_pid.setdefault(found.pid, []).append(found)
    ordered = tuple(found for process in processes for found in by_pid.get(process.pid, ()))
    current = next((found for found in ordered if found.device == _CURRENT), None)
    stats: dict[int, Stat] = {}
    for pid in {found.pid for found in ordered}:
        with suppress(OSError):
            stats[pid] = read_stat(pid)
    if current is None or current.pid not in stats or not stats[current.pid].terminal:
        return ()
    its = stats[current.pid]
    holder = next((found.pid for found in ordered if _is_of_session(found, its, stats)), None)
    return () if holder == current.pid and its.foreground == its.sid else (current,)


def _is_of_session(found: Descriptor, its: Stat, stats: dict[int, Stat]) -> bool:
    if found.is_master:
        index = found.tty_index
        return index is not None and os.makedev(_SLAVES[0] + (index >> 8), index & 0xFF) == its.terminal
    # The process itself must have it as its controlling terminal.
    own = stats.get(found.pid)
    return found.device == its.terminal and own is not None and (own.terminal, own.sid) == (its.terminal, its.sid)


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
