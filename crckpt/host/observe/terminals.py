"""Find a /dev/tty that CRIU would not save, by the terminals that the tree has open."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from crckpt.host.proc import Descriptor, Process
from crckpt.host.proc.status import Stat, read_stat

# Source: Documentation/admin-guide/devices.txt.
_CURRENT: Final = os.makedev(5, 0)
_MASTERS: Final = os.makedev(5, 2)
_SLAVES: Final = range(136, 144)


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
