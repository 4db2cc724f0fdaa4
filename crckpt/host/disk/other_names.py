"""Other names of a file in the directory where it lost one. The directory may belong to another user."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crckpt.errors import RestoreFailed
from crckpt.host.steps import step
from crckpt.host.syscalls.openat2 import open_without_links


def find_other_name(path: str, inodes: Collection[int]) -> str:
    """Return the name of a file with one of these inodes in the directory of `path`; empty if there is none."""
    with suppress(OSError), os.scandir(Path(path).parent) as entries:
        return next((entry.name for entry in entries if entry.inode() in inodes), "")
    return ""


@contextmanager
def linked_again(path: Path, name: str) -> Iterator[None]:
    """Give the file `name`, in the directory of `path`, that name, too. If the block fails, take it away again.

    Raises RestoreFailed if a symbolic link is in the way, or if the file has gone.
    """
    try:
        directory = open_without_links(str(path.parent), os.O_PATH | os.O_DIRECTORY)
        try:
            found = open_without_links(name, os.O_PATH, directory=directory)
            try:
                step("other-name.link", path)
                os.link(f"/proc/self/fd/{found}", path.name, dst_dir_fd=directory, follow_symlinks=True)
            finally:
                os.close(found)
        except BaseException:
            os.close(directory)
            raise
    except OSError as error:
        raise RestoreFailed(f"{path} cannot be linked to {name}: {error.strerror}", hint="try again") from error
    try:
        yield
    except BaseException:
        step("other-name.unlink", path)
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=directory)
        raise
    finally:
        os.close(directory)
