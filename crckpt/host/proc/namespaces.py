"""/proc/PID/ns: the namespaces of processes. Source: namespaces(7)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_KINDS = ("pid", "mnt", "net", "ipc", "uts", "user", "cgroup", "time", "time_for_children")


def namespace(pid: int | str, kind: str) -> int:
    """The inode that names a process's namespace of that kind. Raises OSError."""
    return Path(f"/proc/{pid}/ns/{kind}").stat().st_ino


def read_namespaces(pid: int) -> tuple[tuple[str, int], ...]:
    """(kind, inode) of the namespaces of a process; none if we may not see them."""
    found = []
    with suppress(OSError):
        for kind in _KINDS:
            with suppress(FileNotFoundError):  # a kernel without such namespaces: `time` came with Linux 5.6
                # Called for every process: a `Path` of each link takes longer than the kernel's answer.
                found.append((kind, os.stat(f"/proc/{pid}/ns/{kind}").st_ino))
    return tuple(found)
