"""Find limits that the processes of a live tree have reached, so that CRIU cannot work in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from crckpt.host.proc import Descriptor, procfs
from crckpt.host.proc.maps import count_maps
from crckpt.host.proc.status import read_status
from crckpt.model import PAGE_SIZE

LimitKind = Literal["descriptors", "addresses", "maps", "groups", "line"]

# CRIU's code in a process opens a socket and files of /proc there, and gets a pipe (criu/pie/parasite.c): seen.
_FREE_DESCRIPTORS: Final = 4
# It gets memory there, with 16 bytes for each page of the process (criu/mem.c, dump_pages_args_size), and splits it.
_FREE_ADDRESSES: Final = 256 << 10
_FREE_MAPS: Final = 8
# PARASITE_MAX_GROUPS of CRIU 4.2 (criu/include/parasite.h).
_MOST_GROUPS: Final = 973
# CRIU reads /proc by lines into a buffer of a page (criu/bfd.c).
_LONGEST_LINE: Final = PAGE_SIZE - 1
_UNLIMITED: Final = 1 << 64


class ReachedLimit(Struct, frozen=True):
    """A process that has `used` up what `limit` allows; it may raise that to `hard`.

    Of a `line` of its mount table only the length is known.
    """

    pid: int
    kind: LimitKind
    used: int
    limit: int
    hard: int = 0


def find_reached_limits(pids: Iterable[int], descriptors: Iterable[Descriptor]) -> Iterator[ReachedLimit]:
    """Find the limits of these processes; none of those that end at the same time."""
    opened: dict[int, list[int]] = {}
    for found in descriptors:
        opened.setdefault(found.pid, []).append(found.fd)
    most_maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    for pid in pids:
        with suppress(OSError):
            limits, status = _read_limits(pid), read_status(pid)
            most, hard = limits["Max open files"]
            used = sum(fd < most for fd in opened.get(pid, ()))
            if most - used < _FREE_DESCRIPTORS:
                yield ReachedLimit(pid, "descriptors", used, most, hard)
            size = int(status.get("VmSize", "0").split()[0]) << 10
            allowed, _ = limits["Max address space"]
            if size and size + size // PAGE_SIZE * 16 + _FREE_ADDRESSES > allowed:
                yield ReachedLimit(pid, "addresses", size, allowed)
            # Only one with so much address space can have so many.
            if size >= (most_maps - _FREE_MAPS) * PAGE_SIZE and (count := count_maps(pid)) + _FREE_MAPS > most_maps:
                yield ReachedLimit(pid, "maps", count, most_maps)
            groups = status.get("Groups", "")
            if len(groups.split()) > _MOST_GROUPS or len(f"Groups:\t{groups} \n") > _LONGEST_LINE:
                yield ReachedLimit(pid, "groups", len(groups.split()), _MOST_GROUPS)


def find_long_mount(pid: int) -> Iterator[ReachedLimit]:
    """Find a line of a process's mount table that CRIU cannot read."""
    with suppress(OSError):
        longest = max(map(len, procfs.lines(f"/proc/{pid}/mountinfo")), default=0)
        if longest >= _LONGEST_LINE:
            yield ReachedLimit(pid, "line", longest, _LONGEST_LINE)


def _read_limits(pid: int) -> dict[str, tuple[int, int]]:
    """Read the limits of a process: name -> soft and hard. Raises OSError."""
    # Columns of fixed width (fs/proc/base.c, proc_pid_limits).
    lines = procfs.lines(f"/proc/{pid}/limits")[1:]
    return {line[:26].strip(): (_read_limit(line[26:47]), _read_limit(line[47:68])) for line in lines}


def _read_limit(column: str) -> int:
    return _UNLIMITED if column.strip() == "unlimited" else int(column)
