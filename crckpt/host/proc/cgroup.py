"""/proc/PID/cgroup: the control groups of processes. Source: cgroups(7)."""

from __future__ import annotations

from collections.abc import Iterable

from crckpt.host.proc import procfs


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
