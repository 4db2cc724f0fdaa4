"""/proc/PID/ns: the namespaces of processes. Source: namespaces(7)."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_KINDS = ("pid", "mnt", "net", "ipc", "uts", "user", "cgroup", "time", "time_for_children")


def namespace(pid: int | str, kind: str) -> int:
    """The inode that names a process's namespace of that kind. Raises OSError."""
    return Path(f"/proc/{pid}/ns/{kind}").stat().st_ino


def read_namespaces(pid: int) -> tuple[tuple[str, int], ...]:
    """(kind, inode) of the namespaces of a process; none if we may not see them, or it has ended."""
    try:
        # Called for every process: a `Path` of each link takes longer than the kernel's answer.
        return tuple((kind, os.stat(f"/proc/{pid}/ns/{kind}").st_ino) for kind in _known_kinds())
    except OSError:
        # All or nothing: some of the namespaces of a process that ends meanwhile would be mistaken for others.
        return ()


@cache
def _known_kinds() -> tuple[str, ...]:
    """The kinds that the kernel has: `time` came with Linux 5.6."""
    return tuple(kind for kind in _KINDS if Path(f"/proc/self/ns/{kind}").exists())
