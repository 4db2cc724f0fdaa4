"""Write a tree's files back to network file systems: only then another host sees what was written."""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterable
from pathlib import Path

from crckpt.errors import DumpFailed
from crckpt.host.disk.checked_files import regular_opened
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
            try:
                status = Path(link).stat()
                identity = status.st_dev, status.st_ino
                if not stat.S_ISREG(status.st_mode) or status.st_dev not in devices or identity in done:
                    continue
                # A process that runs may have put a device or a FIFO there since.
                with regular_opened(link) as descriptor:
                    if descriptor is not None:
                        step("write-back.sync", link)
                        os.fsync(descriptor)
                done.add(identity)
            except (FileNotFoundError, ProcessLookupError):
                # The process has removed the file, or has ended.
                continue
            except OSError as error:
                raise DumpFailed(
                    f"{Path(link).readlink()} cannot be written back to its file system: {error.strerror}",
                    hint="root needs to open it: of NFS, export it with no_root_squash",
                ) from error
