"""Tell CRIU's preload library with whose rights it makes and opens what a process had (holders.c)."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from crckpt.images.tree import ImageTree

HOLDERS: Final = "holders"
"""Its name in the directory of CRIU's run."""

# The library maps it before we know how much is needed. It stays sparse.
_SIZE: Final = 8 << 20
_MOST_GROUPS: Final = 256


def create_holders(path: Path) -> None:
    """Create the file, which says nothing yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, _SIZE)
    finally:
        os.close(descriptor)


def write_holders(path: Path, tree: ImageTree) -> None:
    """Write user and groups of all processes that are not root's, before CRIU makes any."""
    content = b""
    for process in tree.processes:
        rights = process.core.rights
        # With more groups than the library takes, a process gets its things from root.
        if rights is not None and rights.uids[3] and len(rights.groups) <= _MOST_GROUPS:
            groups = sorted(rights.groups)
            numbers = (process.pid, rights.uids[3], rights.gids[3], len(groups), *groups)
            content += struct.pack(f"={len(numbers)}I", *numbers)
    with path.open("r+b") as file:
        file.write(content[: _SIZE - 4])
