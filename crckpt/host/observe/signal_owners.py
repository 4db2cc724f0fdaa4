"""Find descriptors whose signals go where no restore sends them. /proc does not show the owner of a descriptor.

Source: fcntl(2), F_GETOWN_EX. CRIU sets the owner before it makes threads (criu/files.c, restore_fown).
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.proc.status import read_status
from crckpt.host.process.pidfd import borrow_each

_F_GETOWN_EX: Final = 16
_OWNER: Final = struct.Struct("=2i")  # struct f_owner_ex: type, pid
_THREAD, _GROUP = 0, 2  # F_OWNER_TID, F_OWNER_PGRP


class LostOwner(Struct, frozen=True):
    """A descriptor whose signals go to `owner`: a thread that is not the first of its process, or one outside the tree.

    `owner` is then a process or, with `is_group`, a process group.
    """

    pid: int
    fd: int
    owner: int
    is_thread: bool = False
    is_group: bool = False


def find_lost_owners(tree: proc.Tree, descriptors: Iterable[proc.Descriptor]) -> tuple[LostOwner, ...]:
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
    lost: dict[tuple[int, int], LostOwner] = {}
    for pid, numbers in asked.items():
        for fd, ours in borrow_each(pid, numbers):
            with suppress(OSError):
                kind, owner = _OWNER.unpack(fcntl.fcntl(ours, _F_GETOWN_EX, _OWNER.pack(0, 0)))
                # 0: it has none, or that has ended.
                if owner and (kind, owner) not in lost:
                    for each in _judge(tree, LostOwner(pid, fd, owner, is_group=kind == _GROUP), kind):
                        lost[kind, owner] = each
    return tuple(lost.values())


def _judge(tree: proc.Tree, held: LostOwner, kind: int) -> Iterator[LostOwner]:
    """Yield it if a restore loses its owner. Raises OSError if that has ended."""
    # A restore makes a group again whose leader has ended.
    if kind == _GROUP and held.owner in {process.pgid for process in tree.processes} and not _runs(held.owner):
        return
    leader = held.owner if kind == _GROUP else int(read_status(held.owner)["Tgid"])
    if leader not in tree.pids and tree.root.pid not in proc.ancestors(leader):
        yield held
    elif kind == _THREAD and leader != held.owner:
        yield LostOwner(held.pid, held.fd, held.owner, is_thread=True)


def _runs(pid: int) -> bool:
    return proc.start_time(pid) is not None
