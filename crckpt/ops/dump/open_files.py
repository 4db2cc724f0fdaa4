"""Record which files a live tree has open.

`crckpt.ops.restore.open_files` checks that a restored tree has these open, and no others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.disk.users import read_link_target
from crckpt.host.proc.maps import find_mapped_files


class OpenFiles(Struct, frozen=True):
    """The files by path: `known`, device, inode and whether it is open for writing; `owners`, the ids of users."""

    known: dict[str, list[tuple[int, int, int]]]
    owners: dict[str, list[int]]


def record(tree: proc.Tree, descriptors: Iterable[proc.Descriptor]) -> OpenFiles:
    """Record the files, for the details of the checkpoint."""
    known: dict[str, set[tuple[int, int, int]]] = {}
    owners: dict[str, set[int]] = {}
    for descriptor in descriptors:
        if descriptor.identity != (0, 0) and descriptor.target.startswith("/"):
            writes = int(descriptor.flags & os.O_ACCMODE != os.O_RDONLY)
            known.setdefault(descriptor.target, set()).add((*descriptor.identity, writes))
            found = read_link_target(f"/proc/{descriptor.pid}/fd/{descriptor.fd}")
            if found is not None and (found.device, found.inode) == descriptor.identity:
                owners.setdefault(descriptor.target, set()).add(found.owner)
    for process in tree.processes:
        names = (f"/proc/{process.pid}/{name}" for name in ("exe", "cwd", "root"))
        links = (*names, *find_mapped_files(process.pid).values())
        reached = [found for link in links if (found := read_link_target(link))]
        # Another process may have got its PID: its files are not the tree's.
        for found in reached if proc.is_current(process) else ():
            known.setdefault(found.path, set()).add((found.device, found.inode, 0))
            owners.setdefault(found.path, set()).add(found.owner)
    return OpenFiles(
        {path: sorted(found) for path, found in known.items()}, {path: sorted(found) for path, found in owners.items()}
    )
