"""Tell CRIU's preload library with whose rights and in which control groups it makes what a process had (holders.c)."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from crckpt.host.process import cgroups
from crckpt.images.tree import ImageTree
from crckpt.preflight.attribute_record import GroupMoves

HOLDERS: Final = "holders"
"""Its name in the directory of CRIU's run."""

# The library maps it before we know how much is needed. It stays sparse.
_SIZE: Final = 8 << 20
_MOST_GROUPS: Final = 256
_WORD: Final = 4
_END: Final = bytes(_WORD)


def create_holders(path: Path) -> None:
    """Create the file, which says nothing yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, _SIZE)
    finally:
        os.close(descriptor)


def write_holders(path: Path, tree: ImageTree, moves: GroupMoves = ()) -> None:
    """Write user and groups of all processes that are not root's, before CRIU makes any; and their `moves`."""
    content = b""
    for process in tree.processes:
        rights = process.core.rights
        # With more groups than the library takes, a process gets its things from root.
        if rights is not None and rights.uids[3] and len(rights.groups) <= _MOST_GROUPS:
            numbers = (process.pid, rights.uids[3], rights.gids[3], len(rights.groups), *sorted(rights.groups))
            content += struct.pack(f"={len(numbers)}I", *numbers)
    content += _END
    for pid, group in moves:
        directory = cgroups.group_directory(group.controllers, group.path)
        # Rules for the opening of devices are not for what was opened before: such a group is entered in the hold.
        if directory is not None and group.controllers != "devices":
            name = os.fsencode(directory / "cgroup.procs")
            words = len(name) // _WORD + 1
            content += struct.pack(f"=II{words * _WORD}s", pid, words, name)
    with path.open("r+b") as file:
        file.write(content[: _SIZE - len(_END)])
