"""/proc/PID/cgroup: the control groups of processes. Source: cgroups(7)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host.proc import procfs
from crckpt.host.proc.stat import read_stat

# Version 2 alone; version 2 beside version 1 (hybrid); version 1, in systemd's own hierarchy.
_MOUNTS: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/systemd"))


def read_cgroups(pid: int | str) -> tuple[tuple[str, str], ...]:
    """(controllers, path) of the group of a process in each hierarchy; version 2 has no controllers' names.

    Raises OSError if the process has ended.
    """
    return parse_cgroups(procfs.lines(f"/proc/{pid}/cgroup"))


def parse_cgroups(lines: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Take apart the lines of such a file."""
    # The first word is a number that only the kernel uses. A path may have colons.
    rows = (line.split(":", 2) for line in lines)
    return tuple((controllers, path) for _, controllers, path in rows)


def find_directory(group: str) -> Path | None:
    """The directory of a control group in systemd's hierarchy; None if it is not visible here."""
    directories = (mount / group.lstrip("/") for mount in _MOUNTS)
    return next((directory for directory in directories if (directory / "cgroup.procs").is_file()), None)


def find_roots(directory: Path) -> list[int]:
    """PIDs of the processes in a control group, or in those below it, whose parents are not in it."""
    members: set[int] = set()
    # cgroup.procs lists a group's own processes, not those of the groups below it.
    for place, _, _ in os.walk(directory):
        with suppress(OSError):  # a cgroup may vanish while we look
            members.update(int(line) for line in Path(place, "cgroup.procs").read_text().split())
    roots = []
    for pid in sorted(members):
        with suppress(FileNotFoundError, ProcessLookupError):
            if read_stat(pid).ppid not in members:
                roots.append(pid)
    return roots
