"""Who gets the signals of descriptors (F_SETOWN), and with whose rights, as the kernel has it.

Source: fcntl(2), linux/fcntl.h, fs/fcntl.c.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.host.proc.task_states import FileOwner, ProcessState, TaskStates
from crckpt.host.process.pidfd import borrow_each

_SETOWN_EX, _GETOWN_EX, _GETOWNER_UIDS = 15, 16, 17
_GROUP: Final = 2  # F_OWNER_PGRP
_OWNER: Final = struct.Struct("=ii")  # struct f_owner_ex: type and number
_UIDS: Final = struct.Struct("=II")
_UNKNOWN: Final = -1


class _Numbers(Struct, frozen=True):
    """The numbers of processes and process groups in the namespace of a tree, by those that we see."""

    processes: Mapping[int, int]
    groups: Mapping[int, int]

    def inside(self, owner: FileOwner) -> FileOwner:
        known = self.groups if owner.kind == _GROUP else self.processes
        return replace(owner, pid=known.get(owner.pid, _UNKNOWN))


def read_owner(ours: int) -> FileOwner | None:
    """Read the owner of the signals of a descriptor of ours; None if nobody gets them. Raises OSError."""
    kind, pid = _OWNER.unpack(fcntl.fcntl(ours, _GETOWN_EX, bytes(_OWNER.size)))
    real, effective = _UIDS.unpack(fcntl.fcntl(ours, _GETOWNER_UIDS, bytes(_UIDS.size)))
    return FileOwner(kind, pid, (real, effective)) if pid else None


def remove_owner(ours: int) -> None:
    """Let nobody get the signals of a descriptor of ours. Raises OSError."""
    fcntl.fcntl(ours, _SETOWN_EX, _OWNER.pack(0, 0))


def add_signal_owners(states: TaskStates) -> TaskStates:
    """Read the owners of all descriptors of a frozen tree of several users, except of processes with all our rights.

    If it has only one user, nobody can have an owner with more rights: then its states are returned as they are.
    """
    if len({frozenset(rights.uids) for rights in states.rights.values()}) < 2:
        return states
    groups = {}
    for state in states.processes.values():
        with suppress(OSError):
            groups[os.getpgid(state.pid)] = state.pgid
    numbers = _Numbers({state.pid: pid for pid, state in states.processes.items()}, groups)
    read = {
        pid: state if state.is_trusted else replace(state, owners=dict(_read_owners(state, pid, numbers)))
        for pid, state in states.processes.items()
    }
    return replace(states, processes=read)


def _read_owners(state: ProcessState, pid: int, numbers: _Numbers) -> Iterator[tuple[int, FileOwner]]:
    with suppress(OSError):
        descriptors = (int(link.name) for link in Path(f"/proc/{state.pid}/fd").iterdir())
        for fd, ours in borrow_each(state.pid, descriptors):
            with suppress(OSError):  # it is open only for its path
                if (owner := read_owner(ours)) is not None:
                    # In a PID namespace of its own the process has another number.
                    yield fd, owner if state.pid == pid else numbers.inside(owner)
