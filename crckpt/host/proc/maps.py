"""/proc/PID/maps and /proc/PID/map_files. Source: proc_pid_maps(5)."""

from __future__ import annotations

import os
from contextlib import suppress

from msgspec import Struct

from crckpt.host.proc import procfs


class Map(Struct, frozen=True):
    """A map of a process: the words of its line. `rights` are like `rw-p`, `path` is empty or may be no path: `[heap]`.

    A process may have 65,530 of them: numbers are made of words only where they are asked for.
    """

    addresses: str
    rights: str
    offset: str
    device: str
    inode: str
    path: str = ""

    @property
    def start(self) -> int:
        """Its first address."""
        return int(self.addresses.partition("-")[0], 16)

    @property
    def end(self) -> int:
        """The address behind it."""
        return int(self.addresses.partition("-")[2], 16)

    @property
    def is_shared(self) -> bool:
        """Whether others see what is written to it."""
        return self.rights[3] == "s"

    @property
    def is_writable(self) -> bool:
        """Whether the process can write to it."""
        return self.rights[1] == "w"

    @property
    def has_file(self) -> bool:
        """Whether it is of a file, though that may have no name."""
        return self.inode != "0"

    def link(self, pid: int) -> str:
        """A link to its file, in the process that has it."""
        # The link's name has no zeros in front.
        return f"/proc/{pid}/map_files/{self.start:x}-{self.end:x}"


def read_maps(pid: int) -> list[Map]:
    """Read the maps of a process, by address. Raises OSError if it has ended."""
    return [Map(*line.split(maxsplit=5)) for line in procfs.lines(f"/proc/{pid}/maps")]


def count_maps(pid: int) -> int:
    """Count the maps of a process; 0 if it has ended."""
    with suppress(OSError):
        return len(procfs.lines(f"/proc/{pid}/maps"))
    return 0


def find_mapped_files(pid: int) -> dict[tuple[str, str, str], str]:
    """Each file that a process has mapped -> a link to it; none if the process has ended.

    A file is named by device, inode and path: the same file has the same name in every process. The link is of a map
    that writes to the file, if there is one.
    """
    found: dict[tuple[str, str, str], str] = {}
    with suppress(OSError):
        for each in read_maps(pid):
            file = each.device, each.inode, each.path
            if each.path and each.has_file and (file not in found or (each.is_shared and each.is_writable)):
                found[file] = each.link(pid)
    return found


def find_deleted_mapped_files(pid: int) -> tuple[tuple[str, int, int], ...]:
    """(path, bytes, links) of mapped files whose name is gone; bytes as in `Descriptor.most`."""
    found = {}
    for (*_, path), link in find_mapped_files(pid).items():
        with suppress(OSError):
            if path.endswith(" (deleted)"):
                status = os.stat(link)
                size = max(status.st_size, status.st_blocks * 512)
                found[status.st_dev, status.st_ino] = os.readlink(link), size, status.st_nlink
    return tuple(found.values())
