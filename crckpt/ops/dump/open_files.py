"""Record which files a live tree has open at paths that other users could replace.

`crckpt.ops.restore.open_files` checks that a restored tree has these open, and no others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from crckpt.host import proc
from crckpt.host.disk.path_trust import PathChangers
from crckpt.host.disk.users import read_link_target
from crckpt.host.proc.maps import find_mapped_files


def record(tree: proc.Tree, descriptors: Iterable[proc.Descriptor]) -> dict[str, list[tuple[int, int, int]]]:
    """By path, the device, inode and whether it is open for writing, for the details of the checkpoint."""
    look = PathChangers()
    known: dict[str, list[tuple[int, int, int]]] = {}
    # Record only paths that others than root can change: only root can replace a file in /etc or /usr.
    for descriptor in descriptors:
        if descriptor.identity != (0, 0) and look(descriptor.target):
            writes = int(descriptor.flags & os.O_ACCMODE != os.O_RDONLY)
            known.setdefault(descriptor.target, []).append((*descriptor.identity, writes))
    for process in tree.processes:
        names = (f"/proc/{process.pid}/{name}" for name in ("exe", "cwd", "root"))
        links = (*names, *find_mapped_files(process.pid).values())
        reached = [found for link in links if (found := read_link_target(link))]
        # Another process may have got its PID: its files are not the tree's.
        for found in reached if proc.is_current(process) else ():
            if look(found.path):
                known.setdefault(found.path, []).append((found.device, found.inode, 0))
    return {path: sorted(set(found)) for path, found in known.items()}
