"""Read what limits of control groups (version 1 and 2) leave us, and which groups are frozen."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from crckpt.host.proc.cgroup import read_cgroups
from crckpt.host.syscalls.bpf import group_programs

# Where systemd mounts them. On a host with both versions (hybrid), version 2 is in `unified`.
_MOUNTS = Path("/sys/fs/cgroup")
_NOT_MOUNTED_ALONE = "unified"

# Version 2 and 1: the limit, what is used of it, and the lines of memory.stat that count file pages.
_MEMORY = ("memory.max", "memory.current", ("active_file", "inactive_file"))
_MEMORY_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))

_LIMITED = {
    "memory.max": "memory",
    "memory.limit_in_bytes": "memory",
    "memory.swap.max": "swap",
    "pids.max": "pids",
}
# Version 1 has no word for "no limit", but a number of about this size.
_NO_LIMIT = 1 << 62

# Version 2 and 1: the file that shows whether a group itself is frozen, and how to thaw it.
_FREEZERS = (
    ("cgroup.freeze", "echo 0", "cgroup.freeze"),
    ("freezer.self_freezing", "echo THAWED", "freezer.state"),
)


class TasksLeft(Struct, frozen=True):
    """The number of tasks (processes and threads) that may still be started in a control group and those below it."""

    group: str
    left: int


class FrozenGroup(Struct, frozen=True):
    """A control group that is frozen itself, its directory, and the shell command that thaws it."""

    group: str
    thaw: str


def groups(controller: str, pid: int | None = None) -> Iterator[Path]:
    """The directories of a process's group (default: ours) and of those above it, for one controller.

    Source: cgroups(7), /proc/PID/cgroup. Raises OSError if the process has ended.
    """
    for names, path in read_cgroups(pid or "self"):
        if names and controller not in names.split(","):
            continue
        for mount in (_MOUNTS / names,) if names else (_MOUNTS / _NOT_MOUNTED_ALONE, _MOUNTS):
            if mount.is_dir():
                own = mount / path.lstrip("/")
                yield from (group for group in (own, *own.parents) if group.is_relative_to(mount))
                break


def group_directory(controllers: str, path: str) -> Path | None:
    """The directory of a group; None if there is none, or `path` does not begin at the top of a hierarchy."""
    # The path may come from a checkpoint: root must not be led to a directory elsewhere.
    parts = path.strip("/").split("/")
    if not path.startswith("/") or "." in parts or ".." in parts:
        return None
    name = controllers.removeprefix("name=")
    if "/" in name or name in (".", ".."):
        return None
    for mount in (_MOUNTS / name,) if name else (_MOUNTS / _NOT_MOUNTED_ALONE, _MOUNTS):
        if mount.is_dir():
            found = mount / path.lstrip("/")
            return found if (found / "cgroup.procs").exists() else None
    return None


def restrictions(controllers: str, path: str) -> dict[str, int]:
    """The lowest limits of a group and those above it: memory and swap (bytes), tasks, CPU (in ppm)."""
    # Rules on devices and on the network count as 1: they cannot be compared.
    least: dict[str, int] = {}
    own = group_directory(controllers, path)
    if own is None:
        return least
    above = len([part for part in path.split("/") if part])
    for group in (own, *list(own.parents)[:above]):
        for name, limit in _limits(group):
            least[name] = min(limit, least.get(name, limit))
    if not controllers:
        least.update(dict.fromkeys(group_programs(own), 1))
    return least


def _limits(group: Path) -> Iterator[tuple[str, int]]:
    for file, name in _LIMITED.items():
        with suppress(OSError, ValueError):
            limit = _number(group / file)
            if limit is not None and limit < _NO_LIMIT:
                yield name, limit
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        if quota != "max":
            yield "cpu", int(quota) * 1_000_000 // int(period)
    with suppress(OSError, ValueError):
        quota_1 = int((group / "cpu.cfs_quota_us").read_text())
        if quota_1 > 0:
            yield "cpu", quota_1 * 1_000_000 // int((group / "cpu.cfs_period_us").read_text())
    with suppress(OSError):
        # Version 1: this one line allows all devices. Version 2 has BPF programs instead.
        if (group / "devices.list").read_text().split() != ["a", "*:*", "rwm"]:
            yield "devices", 1
    with suppress(OSError):
        # Version 1: rules on packets, and of traffic control, that name this class.
        if (group / "net_cls.classid").read_text().strip() != "0":
            yield "network", 1


def find_frozen_group(pid: int) -> FrozenGroup | None:
    """The frozen group that freezes a process: its own or one above it; None if there is none, or it has ended."""
    with suppress(OSError):
        return _find_frozen(groups("freezer", pid))
    return None


def is_frozen(directory: Path) -> bool:
    """Return whether what is in a group is frozen, by its own switch or by one above it."""
    with suppress(OSError):
        return _find_frozen((directory, *directory.parents)) is not None
    return False


def _find_frozen(upwards: Iterable[Path]) -> FrozenGroup | None:
    for group in upwards:
        for switch, thaw, file in _FREEZERS:
            # Do not look at the state (cgroup.events, freezer.state): a group below a frozen one cannot be thawed by
            # itself.
            if (group / switch).exists() and (group / switch).read_text().strip() == "1":
                return FrozenGroup(str(group), f"{thaw} > {shlex.quote(str(group / file))}")
    return None


def memory_left(*, swap: int = 0) -> Iterator[int]:
    """Bytes that each group with a limit leaves us.

    `swap` is the free swap of the system, of which a group gets what its own limit allows.
    """
    # File pages of a group count as free: the kernel reclaims them first.
    for group in groups("memory"):
        limit, used, cached = _MEMORY if (group / _MEMORY[0]).exists() else _MEMORY_1
        try:
            most = _number(group / limit)
            if most is not None:
                words = (line.split() for line in (group / "memory.stat").read_text().splitlines())
                files = sum(int(number) for name, number in words if name in cached)
                yield most - int((group / used).read_text()) + files + min(swap, _swap_left(group, swap))
        except OSError:
            continue


def tasks_left() -> TasksLeft | None:
    """The group whose limit leaves the fewest tasks; None if there is no limit."""
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


def _swap_left(group: Path, most: int) -> int:
    """Free swap of the group; all of the system's under version 1, where memory and swap share an optional limit."""
    try:
        limit = _number(group / "memory.swap.max")
        return most if limit is None else max(0, limit - int((group / "memory.swap.current").read_text()))
    except OSError:
        return most
