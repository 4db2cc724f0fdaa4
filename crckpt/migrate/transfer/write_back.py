"""Write a tree's files back to network file systems: only then another host sees what was written."""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path

from crckpt.errors import DumpFailed
from crckpt.host.disk.checked_files import open_regular
from crckpt.host.proc.file_users import list_writable
from crckpt.host.steps import step


def write_back(pids: Iterable[int], devices: Container[int]) -> None:
    """Write back what these processes have open for writing on the file systems `devices`.

    While they run, this leaves little to their freeze; they go on writing. Another host that opens the files afterwards
    has their new content and size; one that has opened them before may not (nfs(5), close-to-open cache consistency).
    Raises DumpFailed.
    """
    done: set[tuple[int, int]] = set()
    for pid in pids:
        for link in list_writable(pid):
            # The process has removed the file, or has ended.
            with suppress(FileNotFoundError, ProcessLookupError):
                status = Path(link).stat()
                identity = status.st_dev, status.st_ino
                if stat.S_ISREG(status.st_mode) and status.st_dev in devices and identity not in done:
                    _write_back(link)
                    done.add(identity)


def _write_back(link: str) -> None:
    try:
        # A process that runs may have put a device or a FIFO there since.
        descriptor, _ = open_regular(link)
        if descriptor is None:
            return
        try:
            step("write-back.sync", link)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        raise
    except OSError as error:
        raise DumpFailed(
            f"{Path(link).readlink()} cannot be written back to its file system: {error.strerror}",
            hint="root needs to open it: of NFS, export it with no_root_squash",
        ) from error
