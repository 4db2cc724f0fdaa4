"""Read what this host and single processes use, for people: psutil's figures.

Dumps and restores read what they need themselves (`host.disk.space`, `host.proc`): psutil takes 12 to 60 ms to import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from crckpt.host import proc
from crckpt.host.budget import Budget
from crckpt.host.disk.space import nearest_existing
from crckpt.host.proc.status import look_at_all, real_user

_MOST_FOREIGN: Final = 100
_MODULE: Final = re.compile(r"crckpt(?:\.[a-z_]{1,40}){0,4}")


class ProcessUsage(Struct, frozen=True):
    """The usage of a process: resident memory in bytes, and CPU time in seconds since it was started."""

    memory_bytes: int
    cpu_s: float
    started: datetime


class CriuProcess(Struct, frozen=True):
    """A process of CRIU or crckpt. `program` is its name; `module` is the module of crckpt that Python runs.

    `is_foreign`: it is of another user than root and ours. Its name and command line are what that user chooses.
    """

    pid: int
    ppid: int
    program: str
    module: str
    state: str
    usage: ProcessUsage
    is_foreign: bool = False


class DiskUsage(Struct, frozen=True):
    """The file system of a directory; `free` are the bytes that we may use."""

    directory: str
    mounted_on: str
    kind: str
    total: int
    free: int


class HostUsage(Struct, frozen=True):
    """Memory and disks in bytes; `load` are the averages over 1, 5 and 15 minutes; `cpus` are those that we may use."""

    memory_total: int
    memory_available: int
    swap_total: int
    swap_free: int
    cpus: int
    load: tuple[float, float, float]
    booted: datetime
    disks: tuple[DiskUsage, ...]


def read_process_usage(pid: int) -> ProcessUsage | None:
    """Read what a process uses; None if it has ended."""
    with suppress(psutil.Error):
        return _process_usage(psutil.Process(pid))
    return None


def read_host_usage(directories: Iterable[Path]) -> HostUsage:
    """Read what this host has and uses, with the disks of these directories."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return HostUsage(
        memory_total=memory.total,
        memory_available=memory.available,
        swap_total=swap.total,
        swap_free=swap.free,
        cpus=len(os.sched_getaffinity(0)),  # psutil.cpu_count() has those of the whole host
        load=psutil.getloadavg(),
        booted=_time(psutil.boot_time()),
        disks=tuple(map(_disk_usage, directories)),
    )


def find_criu_processes() -> tuple[CriuProcess, ...]:
    """The processes of CRIU and crckpt, except this one; of other users at most 100, found within a second."""
    trusted = {0, os.getuid()}
    found: list[CriuProcess] = []

    def look(pid: int, _: Budget) -> None:
        is_foreign = real_user(pid) not in trusted
        # Anybody can call any number of processes so.
        if is_foreign and sum(each.is_foreign for each in found) >= _MOST_FOREIGN:
            return
        # Not psutil's command line: a program can declare all of its memory to be its arguments.
        named = (word for option, word in pairwise(proc.command_line(pid)[:6]) if option == "-m")
        module = next((word for word in named if _MODULE.fullmatch(word)), "")
        program = "crckpt" if module else proc.title(pid)
        if pid != os.getpid() and program in ("criu", "crckpt"):
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                usage = _process_usage(process)
                status = process.status()
                found.append(CriuProcess(pid, process.ppid(), program, module, status, usage, is_foreign))

    look_at_all(trusted, look)
    return tuple(found)


def _process_usage(process: psutil.Process) -> ProcessUsage:
    with process.oneshot():  # one read of each file of /proc for all values
        spent = process.cpu_times()
        cpu_s = round(spent.user + spent.system, 2)
        return ProcessUsage(process.memory_info().rss, cpu_s, _time(process.create_time()))


def _disk_usage(directory: Path) -> DiskUsage:
    there = nearest_existing(directory.resolve())
    # The last of several mounts on one place hides the others.
    mounts = [mount for mount in psutil.disk_partitions(all=True) if there.is_relative_to(mount.mountpoint)]
    found = ((mount.mountpoint, mount.fstype) for mount in reversed(mounts))
    place, kind = max(found, key=lambda mount: len(mount[0]), default=("", ""))
    usage = psutil.disk_usage(str(there))
    return DiskUsage(str(directory), place, kind, usage.total, usage.free)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(round(seconds), UTC)
