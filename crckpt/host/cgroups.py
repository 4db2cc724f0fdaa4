"""What the limits of our control groups leave us, version 1 and 2; and whose are frozen."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from crckpt.host import procfs

_OURS = Path("/proc/self/cgroup")
_MOUNTS = Path("/sys/fs/cgroup")
_NOT_MOUNTED_ALONE = "unified"

# Version 2 and 1: the limit, what is used of it, and the lines of memory.stat that tell of files.
_MEMORY = ("memory.max", "memory.current", ("active_file", "inactive_file"))
_MEMORY_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))

# Version 2 and 1: what says whether a group is frozen itself, and what to write where to thaw it.
_FREEZERS = (
    ("cgroup.freeze", "echo 0", "cgroup.freeze"),
    ("freezer.self_freezing", "echo THAWED", "freezer.state"),
)


class TasksLeft(Struct, frozen=True):
    """How many more tasks (processes and threads) may be started in a control group and those below it."""

    group: str
    left: int


class Frozen(Struct, frozen=True):
    """A control group that is frozen itself, its directory, and the shell command that thaws it."""

    group: str
    thaw: str


def groups(controller: str, pid: int | None = None) -> Iterator[Path]:
    """The group of a process, or our own, and those above it, where a controller's files stand.

    Source: cgroups(7), /proc/PID/cgroup. Raises OSError if the process has ended.
    """
    for line in procfs.lines(f"/proc/{pid}/cgroup" if pid else str(_OURS)):
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        for mount in (_MOUNTS / names,) if names else (_MOUNTS / _NOT_MOUNTED_ALONE, _MOUNTS):
            if mount.is_dir():
                own = mount / path.lstrip("/")
                yield from (group for group in (own, *own.parents) if group.is_relative_to(mount))
                break


def frozen(pid: int) -> Frozen | None:
    """What keeps a process frozen, its own group or one above it; None if nothing does, or if it has ended."""
    with suppress(OSError):
        for group in groups("freezer", pid):
            for switch, thaw, file in _FREEZERS:
                if (group / switch).exists() and (group / switch).read_text().strip() == "1":
                    return Frozen(str(group), f"{thaw} > {shlex.quote(str(group / file))}")
    return None


def memory_left(*, swap: int = 0) -> Iterator[int]:
    """Bytes that each group with a limit leaves us. What it holds of files counts: the kernel takes that back first.

    `swap` bytes of the system are free, of which a group gets what its own limit allows.
    """
    for group in groups("memory"):
        limit, used, cached = _MEMORY if (group / _MEMORY[0]).exists() else _MEMORY_1
        try:
            most = _number(group / limit)
            if most is not None:
                files = _counted(group / "memory.stat", cached)
                yield most - int((group / used).read_text()) + files + min(swap, _swap_left(group, swap))
        except OSError:
            continue


def tasks_left() -> TasksLeft | None:
    """The group with a limit that leaves the fewest; None if there is no limit."""
    found = []
    for group in groups("pids"):
        try:
            most = _number(group / "pids.max")
            if most is not None:
                found.append(TasksLeft(str(group), most - int((group / "pids.current").read_text())))
        except OSError:
            continue
    return min(found, key=lambda group: group.left, default=None)


def _number(file: Path) -> int | None:
    said = file.read_text().strip()
    return None if said == "max" else int(said)


def _counted(file: Path, names: tuple[str, ...]) -> int:
    words = (line.split() for line in file.read_text().splitlines())
    return sum(int(number) for name, number in words if name in names)


def _swap_left(group: Path, most: int) -> int:
    """Version 1 has memory and swap together in a limit that need not be set: what the system has is taken for it."""
    try:
        limit = _number(group / "memory.swap.max")
        return most if limit is None else max(0, limit - int((group / "memory.swap.current").read_text()))
    except OSError:
        return most
