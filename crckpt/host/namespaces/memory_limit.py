"""Run processes in a new control group with a memory limit (version 1 or 2). Source: cgroups(7), cgroup-v2.rst."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.disk.files import own_name
from crckpt.host.opened import opened
from crckpt.host.process.cgroups import groups
from crckpt.host.process.signals import interrupts_deferred

_PREFIX: Final = "crckpt-rehearsal-"
_LIMITS: Final = ("memory.max", "memory.limit_in_bytes")
# Swap limit / memory limit. Version 1 counts memory as part of the swap limit, version 2 does not.
_WITH_SWAP: Final = (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", 1))

_COUNTS: Final = ("memory.events", "memory.oom_control")
_EMPTY_WITHIN_S: Final = 5.0
# The shell joins the group and then becomes the command, so no process of the command is ever outside the group.
_JOIN: Final = 'echo $$ >"$0" && exec "$@"'


class MemoryGroup(Struct, frozen=True):
    """A group whose processes together may use `limit` bytes of memory."""

    path: Path
    limit: int

    @property
    def joining(self) -> tuple[str, ...]:
        """The words before a command that make it run in this group."""
        return ("sh", "-c", _JOIN, str(self.path / "cgroup.procs"))

    @property
    def ran_out(self) -> bool:
        """Whether the kernel ended a process of it because memory ran out."""
        for name in _COUNTS:
            with suppress(OSError):
                counts = dict(line.split() for line in (self.path / name).read_text().splitlines())
                return counts.get("oom_kill", "0") != "0"
        return False


@contextmanager
def limited(memory: int, within: tuple[Path, ...] | None = None) -> Iterator[MemoryGroup | None]:
    """Make a group with this limit in bytes; end its processes and remove it after the block. None if that fails.

    The group is made in the first of `within` that allows it (default: our own group and those above it).
    First, groups that a killed crckpt has left are removed.
    """
    places = tuple(groups("memory")) if within is None else within
    for top in (place for place in places if place.parent not in places):
        # Other programs remove their groups at the same time: skip what cannot be listed any more.
        left = (Path(above, name) for above, names, _ in os.walk(top) for name in names if name.startswith(_PREFIX))
        for path in left:
            with suppress(OSError), opened(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as held:
                # EWOULDBLOCK: its crckpt is alive. EBUSY: the group still has processes.
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.rmdir()
    made = _make_group(places, memory)
    if made is None:
        yield None
        return
    path, descriptor = made
    try:
        yield MemoryGroup(path, memory)
    finally:
        # Release the lock last: another crckpt removes a group that is not locked.
        with interrupts_deferred():
            _remove(path)
            os.close(descriptor)


def _make_group(places: tuple[Path, ...], memory: int) -> tuple[Path, int] | None:
    """Make a group with this limit in the first of `places` that allows it, and lock it; None if none does."""
    # Under version 2 the new group must be next to our own: a group with processes cannot limit groups below it.
    for place in places:
        with suppress(OSError):
            path, descriptor = _make_locked(place)
            try:
                next(path / name for name in _LIMITS if (path / name).exists()).write_text(str(memory))
            except (OSError, StopIteration):
                path.rmdir()
                os.close(descriptor)
                continue
            for name, share in _WITH_SWAP:
                with suppress(OSError):  # no swap, or not counted
                    if (path / name).exists():
                        (path / name).write_text(str(memory * share))
            return path, descriptor
    return None


def _make_locked(place: Path) -> tuple[Path, int]:
    """Make a group in `place` and lock it; return the descriptor that holds the lock. Raises OSError."""
    path = place / f"{_PREFIX}{own_name()}"
    while True:
        path.mkdir(0o700)
        # Another crckpt removes a group that is not locked, also between these steps: then make it again.
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a group; give up after a while."""
    # The kernel may count a process for a moment after it was reaped, without an event when that ends.
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            path.rmdir()
        if not path.exists():
            return
        time.sleep(0.01)
