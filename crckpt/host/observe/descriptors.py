"""Find descriptors that a restore would not make as they are: with another owner of signals, and a /dev/tty.

/proc does not show the owner. CRIU sets it before it makes threads (criu/files.c, restore_fown). Source: fcntl(2),
F_GETOWN_EX.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.proc import Descriptor, Process
from crckpt.host.proc.status import Stat, read_stat, read_status
from crckpt.host.process.pidfd import borrow_each

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
    opened: dict[int, list[Descriptor]] = {}
    for found in descriptors:
        opened.setdefault(found.pid, []).append(found)
    ordered = tuple(found for process in processes for found in opened.get(process.pid, ()))
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
