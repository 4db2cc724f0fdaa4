"""A control group of our own, with a limit of memory, under version 1 or 2. Source: cgroups(7), cgroup-v2.rst."""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.disk.files import own_name
from crckpt.host.process.cgroups import groups
from crckpt.host.process.signals import interrupts_deferred

_PREFIX: Final = "crckpt-rehearsal-"
_LIMITS: Final = ("memory.max", "memory.limit_in_bytes")
_WITH_SWAP: Final = (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", 1))
"""What swap may take: the limit times this, beside the limit (version 2) or together with it (version 1)."""

_COUNTS: Final = ("memory.events", "memory.oom_control")
_EMPTY_WITHIN_S: Final = 5.0
_JOIN: Final = 'echo $$ >"$0" && exec "$@"'


class MemoryGroup(Struct, frozen=True):
    """A group in which all processes together may take `limit` bytes of memory."""

    path: Path
    limit: int

    @property
    def joining(self) -> tuple[str, ...]:
        """The words before a command that is to run in it."""
        return ("sh", "-c", _JOIN, str(self.path / "cgroup.procs"))

    @property
    def ran_out(self) -> bool:
        """Whether the kernel ended a process of it for want of memory."""
        for name in _COUNTS:
            with suppress(OSError):
                counts = dict(line.split() for line in (self.path / name).read_text().splitlines())
                return counts.get("oom_kill", "0") != "0"
        return False


@contextmanager
def limited(memory: int, within: tuple[Path, ...] | None = None) -> Iterator[MemoryGroup | None]:
    """A new group with this limit in bytes, gone after the block, which ends its processes; None if there can be none.

    It is made in the first of `within` that allows it; these are our own group and those above it if left out.
    Groups that were left by a crckpt that was killed are removed first, wherever it ran.
    """
    places = tuple(groups("memory")) if within is None else within
    for top in (place for place in places if place.parent not in places):
        _remove_abandoned(top)
    path = _make_group(places, memory)
    if path is None:
        yield None
        return
    # Whoever finds it unlocked may remove it.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield MemoryGroup(path, memory)
    finally:
        with interrupts_deferred():
            _remove(path)
            os.close(descriptor)


def _make_group(places: tuple[Path, ...], memory: int) -> Path | None:
    """Under version 2 it can only be beside our own group: one that has processes gives no memory to those below."""
    for place in places:
        path = place / f"{_PREFIX}{own_name()}"
        with suppress(OSError):
            path.mkdir(0o700)
            try:
                next(path / name for name in _LIMITS if (path / name).exists()).write_text(str(memory))
            except (OSError, StopIteration):
                path.rmdir()
                continue
            for name, share in _WITH_SWAP:
                with suppress(OSError):  # no swap, or not counted
                    if (path / name).exists():
                        (path / name).write_text(str(memory * share))
            return path
    return None


def _remove_abandoned(top: Path) -> None:
    # Others remove groups of theirs meanwhile: what cannot be listed any more is passed over.
    for path in (Path(above, name) for above, names, _ in os.walk(top) for name in names if name.startswith(_PREFIX)):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.rmdir()
            finally:
                os.close(descriptor)


def _remove(path: Path) -> None:
    """The kernel may count a process for a moment after it was waited for, and no event tells of the end of that."""
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    while time.monotonic() < deadline:
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            select.select([], [], [], 0.01)
        else:
            return
