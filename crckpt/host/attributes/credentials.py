"""With which rights each thread of a tree runs, as the kernel says: for a tree that is frozen."""

from __future__ import annotations

import os
from contextlib import suppress

from crckpt.host.proc import procfs
from crckpt.images.creds import CAPABILITIES, Rights


def rights_below(root: int) -> dict[int, Rights]:
    """Thread id, in the thread's own pid namespace -> its rights, of process `root` and all its descendants."""
    found: dict[int, Rights] = {}
    waiting = [root]
    while waiting:
        directory = f"/proc/{waiting.pop()}/task"
        with suppress(OSError):
            for task in os.scandir(directory):
                number, rights = _read(procfs.lines(f"{task.path}/status"))
                found[number] = rights
                waiting.extend(map(int, procfs.text(f"{task.path}/children").split()))
    return found


def _read(lines: list[str]) -> tuple[int, Rights]:
    said = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    rights = Rights(
        uids=tuple(map(int, said["Uid"])),
        gids=tuple(map(int, said["Gid"])),
        groups=frozenset(map(int, said["Groups"])),
        capabilities=tuple(int(said[name][0], 16) for name in CAPABILITIES),
        confined=said["NoNewPrivs"] == ["1"],
    )
    return int(said["NSpid"][-1]), rights
