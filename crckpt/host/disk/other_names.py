"""Other names of a file in the directory where it lost one. The directory may belong to another user."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crckpt.errors import RestoreFailed
from crckpt.host.opened import opened
from crckpt.host.steps import step
from crckpt.host.syscalls.openat2 import open_without_links


class OtherNames:
    """Finds files by their inodes in directories, each of which is read once: it may be large."""

    def __init__(self) -> None:
        self._directories: dict[str, dict[int, str]] = {}

    def find(self, path: str, inodes: Collection[int]) -> str:
        """Return the name of a file with one of these inodes in the directory of `path`; empty if there is none."""
        directory = path.rpartition("/")[0]
        if directory not in self._directories:
            self._directories[directory] = {}
            with suppress(OSError), os.scandir(directory or "/") as entries:
                self._directories[directory] = {entry.inode(): entry.name for entry in entries}
        names = self._directories[directory]
        return next((names[inode] for inode in inodes if inode in names), "")


@contextmanager
def linked_again(path: Path, name: str, inode: int, owner: int) -> Iterator[None]:
    """Give the file `name`, in the directory of `path`, that name, too. If the block fails, take it away again.

    Raises RestoreFailed if a symbolic link is in the way, or if the file is not that inode of this user any more.
    """
    try:
        with (
            opened(open_without_links(str(path.parent), os.O_PATH | os.O_DIRECTORY)) as directory,
            opened(open_without_links(name, os.O_PATH, directory=directory)) as found,
        ):
            status = os.fstat(found)
            if (status.st_ino, status.st_uid) != (inode, owner):
                raise FileNotFoundError(errno.ENOENT, "somebody has replaced the file")
            step("other-name.link", path)
            os.link(f"/proc/self/fd/{found}", path.name, dst_dir_fd=directory, follow_symlinks=True)
    except OSError as error:
        raise RestoreFailed(f"{path} cannot be linked to {name}: {error.strerror}", hint="try again") from error
    try:
        yield
    except BaseException:
        step("other-name.unlink", path)
        # A tree may have more such files than we may have descriptors: the directory was closed.
        with suppress(OSError), opened(open_without_links(str(path.parent), os.O_PATH | os.O_DIRECTORY)) as directory:
            if os.stat(path.name, dir_fd=directory, follow_symlinks=False).st_ino == inode:
                os.unlink(path.name, dir_fd=directory)
        raise
