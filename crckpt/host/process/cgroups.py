"""Control groups (version 1 and 2): which one a process is in, the service of it, its limits, and whether it is frozen.

Source: cgroups(7), bpf(2).
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from crckpt.host.opened import opened
from crckpt.host.proc import procfs
from crckpt.host.proc.status import read_parent
from crckpt.host.syscalls.libc import syscall

_MOUNTS = Path("/sys/fs/cgroup")
# systemd's own hierarchy: version 2 alone; version 2 beside version 1 (hybrid); version 1. And its names in /proc.
_OF_SYSTEMD: Final = (_MOUNTS, _MOUNTS / "unified", _MOUNTS / "systemd")
_NAMES_OF_SYSTEMD: Final = ("", "name=systemd")
_UNITS: Final = (".service", ".scope")
# systemd-run makes these names, which mean nothing to anybody.
_TRANSIENT: Final = re.compile(r"run-(u[0-9]+|r[0-9a-f]+|p[0-9]+-i[0-9]+)\.service")

# Version 2 and 1: the limit, what is used of it, and the lines of memory.stat that count file pages.
_MEMORY: Final = ("memory.max", "memory.current", ("active_file", "inactive_file"))
_MEMORY_1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
_LIMITED: Final = {
    "memory.max": "memory",
    "memory.limit_in_bytes": "memory",
    "memory.swap.max": "swap",
    "pids.max": "pids",
}
# Version 1 has no word for "no limit", but a number of about this size.
_NO_LIMIT: Final = 1 << 62
# Version 2 and 1: the file that shows whether a group itself is frozen, and how to thaw it.
_FREEZERS: Final = (
    ("cgroup.freeze", "echo 0", "cgroup.freeze"),
    ("freezer.self_freezing", "echo THAWED", "freezer.state"),
)

_PROG_QUERY: Final = 16  # since Linux 4.15
# BPF_F_QUERY_EFFECTIVE: programs of the groups above apply to this one, too.
_EFFECTIVE: Final = 1
# `query` of union bpf_attr: target_fd, attach_type, query_flags, attach_flags, prog_ids, prog_cnt.
_QUERY: Final = struct.Struct("<IIIIQI4x")
# linux/bpf.h, enum bpf_attach_type. Network: ingress, egress, sockets, addresses to bind and to connect to.
_KINDS: Final = {"devices": (6,), "network": (0, 1, 2, 8, 9, 10, 11)}


class TasksLeft(Struct, frozen=True):
    """The number of tasks (processes and threads) that may still be started in a control group and those below it."""

    group: str
    left: int


class FrozenGroup(Struct, frozen=True):
    """A control group that is frozen itself, its directory, and the shell command that thaws it."""

    group: str
    thaw: str


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
    directories = (mount / group.lstrip("/") for mount in _OF_SYSTEMD)
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
            if read_parent(pid) not in members:
                roots.append(pid)
    return roots


def find_service(pid: int) -> str:
    """The control group of the systemd service whose processes all descend from this one; empty if there is none.

    A job of cron, or a shell of a login, is in the control group of a service, too, but does not have it alone.
    """
    with suppress(OSError):
        group = find_unit(pid)
        directory = find_directory(group) if group else None
        if directory is not None and find_roots(directory) == [pid]:
            return group
    return ""


def find_unit(pid: int) -> str:
    """The control group of the innermost unit in which a process is, if that is a service; empty if there is none."""
    # Such a group may vanish, and in a container it may be out of sight.
    with suppress(OSError):
        for path in (PurePosixPath(path) for names, path in read_cgroups(pid) if names in _NAMES_OF_SYSTEMD):
            unit = next((group for group in (path, *path.parents) if group.name.endswith(_UNITS)), path)
            if unit.name.endswith(".service") and not _TRANSIENT.fullmatch(unit.name) and ".." not in unit.parts:
                return str(unit)
    return ""


def groups(controller: str, pid: int | None = None) -> Iterator[Path]:
    """The directories of a process's group (default: ours) and of those above it, for one controller.

    Raises OSError if the process has ended.
    """
    for names, path in read_cgroups(pid or "self"):
        mount = _find_mount(names) if not names or controller in names.split(",") else None
        if mount is not None:
            own = mount / path.lstrip("/")
            yield from (group for group in (own, *own.parents) if group.is_relative_to(mount))


def _find_mount(controllers: str) -> Path | None:
    """The mount point of a hierarchy, as systemd has it. On a host with both versions, version 2 is in `unified`."""
    mounts = (_MOUNTS / controllers,) if controllers else (_MOUNTS / "unified", _MOUNTS)
    return next((mount for mount in mounts if mount.is_dir()), None)


def group_directory(controllers: str, path: str) -> Path | None:
    """The directory of a group; None if there is none, or `path` does not begin at the top of a hierarchy."""
    # The path may come from a checkpoint: root must not be led to a directory elsewhere.
    parts, name = path.strip("/").split("/"), controllers.removeprefix("name=")
    if not path.startswith("/") or {".", ".."} & {*parts, name} or "/" in name:
        return None
    mount = _find_mount(name)
    found = mount / path.lstrip("/") if mount else None
    return found if found and (found / "cgroup.procs").exists() else None


def restrictions(controllers: str, path: str) -> dict[str, int]:
    """The lowest limits of a group and those above it: memory and swap (bytes), tasks, CPU (in ppm)."""
    # Rules on devices and on the network count as 1: they cannot be compared.
    own, least = group_directory(controllers, path), dict[str, int]()
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


def group_programs(group: Path) -> Iterator[str]:
    """Yield `devices` and `network` if a BPF program of this group, or an inherited one, restricts them.

    Yield nothing if the kernel does not report it.
    """
    with suppress(OSError), opened(os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        for name, kind in ((name, kind) for name, kinds in _KINDS.items() for kind in kinds):
            query = ctypes.create_string_buffer(_QUERY.pack(descriptor, kind, _EFFECTIVE, 0, 0, 0), _QUERY.size)
            # With room for none the kernel returns their number. Without CAP_NET_ADMIN it stays 0.
            with suppress(OSError):
                syscall("bpf", _PROG_QUERY, query, _QUERY.size)
            if _QUERY.unpack(query.raw)[5]:
                yield name


def find_frozen_group(of: int | Path) -> FrozenGroup | None:
    """The frozen group that freezes a process or a group: its own or one above it; None if there is none.

    None also of a process that has ended.
    """
    with suppress(OSError):
        for group in groups("freezer", of) if isinstance(of, int) else (of, *of.parents):
            for switch, thaw, file in _FREEZERS:
                # Do not look at the state (cgroup.events, freezer.state): a group below a frozen one cannot be thawed
                # by itself.
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
        with suppress(OSError):
            most = _number(group / limit)
            if most is not None:
                words = (line.split() for line in (group / "memory.stat").read_text().splitlines())
                files = sum(int(number) for name, number in words if name in cached)
                # Under version 1 memory and swap share an optional limit.
                swap_left = swap
                with suppress(OSError):
                    if (swap_limit := _number(group / "memory.swap.max")) is not None:
                        swap_left = max(0, swap_limit - int((group / "memory.swap.current").read_text()))
                yield most - int((group / used).read_text()) + files + min(swap, swap_left)


def tasks_left() -> TasksLeft | None:
    """The group whose limit leaves the fewest tasks; None if there is no limit."""
    found = []
    for group in groups("pids"):
        with suppress(OSError):
            most = _number(group / "pids.max")
            if most is not None:
                found.append(TasksLeft(str(group), most - int((group / "pids.current").read_text())))
    return min(found, key=lambda group: group.left, default=None)


def _number(file: Path) -> int | None:
    said = file.read_text().strip()
    return None if said == "max" else int(said)
