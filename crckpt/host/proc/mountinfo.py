"""/proc/PID/mountinfo: the mounts of a mount namespace. Source: proc_pid_mountinfo(5)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

# linux/mount.h
_FLAGS: Final = {"nosuid": 2, "nodev": 4, "noexec": 8}


class Mount(Struct, frozen=True):
    """A mount. `options` are its own, `of_all` those of its file system on `device`."""

    id: int
    device: int
    path: str
    kind: str
    options: frozenset[str]
    of_all: frozenset[str]

    @property
    def is_read_only(self) -> bool:
        """Whether its files cannot be written."""
        return "ro" in self.options or "ro" in self.of_all

    @property
    def flags(self) -> int:
        """The restrictions of its options, as flags of mount(2)."""
        return sum(flag for name, flag in _FLAGS.items() if name in self.options)


def mount_points() -> tuple[Mount, ...]:
    """The visible mounts of our namespace, parents first: the last one of each mount point."""
    found: dict[str, Mount] = {}
    for each in read_mounts():
        found.pop(each.path, None)
        found[each.path] = each
    return tuple(sorted(found.values(), key=lambda mount: len(Path(mount.path).parts)))


def read_mounts() -> Iterator[Mount]:
    """Read the mounts of our namespace in the kernel's order, also those that others hide."""
    return read_mounts_of("self")


def read_mounts_of(pid: int | str) -> Iterator[Mount]:
    """Read the mounts of a process's namespace in the kernel's order, also those that others hide."""
    for line in Path(f"/proc/{pid}/mountinfo").read_bytes().removesuffix(b"\n").split(b"\n"):
        # Any number of optional fields ends with the hyphen.
        before, _, after = line.partition(b" - ")
        fields, (kind, _, of_all) = before.split(b" "), after.split(b" ", 2)
        device = os.makedev(*map(int, fields[2].split(b":")))
        # The kernel writes space, tab, line feed and backslash as `\040` ...: other bytes stand as they are.
        path = os.fsdecode(fields[4].decode("unicode_escape").encode("latin-1"))
        own, shared = (frozenset(os.fsdecode(options).split(",")) for options in (fields[5], of_all))
        yield Mount(int(fields[0]), device, path, kind.decode(), own, shared)


def read_mount_ids(pid: int | str) -> Iterator[int]:
    """Read the numbers of the mounts of a process's namespace: `mnt_id` in fdinfo. Raises OSError."""
    yield from (int(line.split(b" ", 1)[0]) for line in Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines())
