"""Record which files a live tree has open where other users could put others in their place.

`crckpt.ops.restore.open_files` checks that a restored tree has these open, and no others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from crckpt.host import proc
from crckpt.host.disk.access import seen
from crckpt.host.disk.path_trust import PathChangers
from crckpt.host.proc.maps import mapped_files


def record(tree: proc.Tree, descriptors: Iterable[proc.Descriptor]) -> dict[str, list[tuple[int, int, int]]]:
    """What a live tree has open, for the details of its checkpoint."""
    look = PathChangers()
    known: dict[str, list[tuple[int, int, int]]] = {}
    for held in descriptors:
        if held.identity != (0, 0) and look(held.target):
            writes = int(held.flags & os.O_ACCMODE != os.O_RDONLY)
            known.setdefault(held.target, []).append((*held.identity, writes))
    for process in tree.processes:
        names = (f"/proc/{process.pid}/{name}" for name in ("exe", "cwd", "root"))
        links = (*names, *mapped_files(process.pid).values())
        reached = [found for link in links if (found := seen(link))]
        # Files of another process that has got its PID are not the tree's.
        for found in reached if proc.is_current(process) else ():
            if look(found.path):
                known.setdefault(found.path, []).append((found.device, found.inode, 0))
    return {path: sorted(set(found)) for path, found in known.items()}
