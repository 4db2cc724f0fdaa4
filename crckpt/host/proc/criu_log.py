"""The log of a CRIU that restores: every process of the tree has it open for writing until the tree runs."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.host.proc.command import working_directory
from crckpt.host.proc.fd import open_flags, read_targets
from crckpt.host.proc.process import read_process
from crckpt.model import Count

_DELETED: Final = " (deleted)"


class CriuLog(Struct, frozen=True):
    """A log, and the start time of its CRIU: no process of the tree is older.

    `device` and `inode` are the file's: any user can have another file at `path`, in mounts of their own, and can pass
    a descriptor of it to any process.
    """

    path: str
    device: Count
    inode: Count
    began: Count

    def is_written_by(self, pid: int) -> bool:
        """Return whether a process of the tree has it open for writing, even if it was removed since."""
        with suppress(OSError):
            for fd, target in read_targets(pid):
                if target.removesuffix(_DELETED) == self.path and self._is_open(pid, fd):
                    return True
        return False

    def _is_open(self, pid: int, fd: int) -> bool:
        if open_flags(pid, fd) & os.O_ACCMODE == os.O_RDONLY:
            return False
        process = read_process(pid)
        if process is None or process.start < self.began:
            return False
        found = os.stat(f"/proc/{pid}/fd/{fd}")
        return (found.st_dev, found.st_ino) == (self.device, self.inode)


def identify_log(path: str, began: int) -> CriuLog | None:
    """Identify the log at `path` of a CRIU that began at `began`; None if there is none."""
    with suppress(OSError):
        found = os.lstat(path)
        return CriuLog(path, found.st_dev, found.st_ino, began)
    return None


def find_log(root: int, builder: int, began: int) -> CriuLog | None:
    """Find the file in the directory of a CRIU that it and the root of its tree write; None if there is none."""
    directory = working_directory(builder)
    with suppress(OSError):
        for fd, target in read_targets(builder):
            if target.rpartition("/")[0] == directory:
                found = os.stat(f"/proc/{builder}/fd/{fd}")
                log = CriuLog(target, found.st_dev, found.st_ino, began)
                if log.is_written_by(builder) and log.is_written_by(root):
                    return log
    return None
