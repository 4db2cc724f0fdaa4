"""Whether CRIU, and the processes that it restores, make progress."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host import proc, procfs

QUIET_S: Final = 30.0
"""Seconds without progress after which a restore hangs."""

_UNINTERRUPTIBLE: Final = "D"


class Progress:
    """Signs of progress of a restore: its log grows, or a process reads, writes, gets memory, starts or ends.

    CPU time is no sign: a process that hangs may spin. It is no hang while a process waits for a disk.
    """

    def __init__(self, log: Path) -> None:
        """`log` is CRIU's; it need not be there yet."""
        self._log = log
        self._signs: object = None
        self._quiet = 0

    def is_stuck(self) -> bool:
        """Whether there was no progress for QUIET_S seconds. Call it every second.

        It counts calls and reads no clock: CRIU may have been stopped together with us.
        """
        before, self._signs = self._signs, _signs(self._log)
        self._quiet = self._quiet + 1 if self._signs is not None and self._signs == before else 0
        return self._quiet > QUIET_S


def _signs(log: Path) -> tuple[frozenset[int], int, int, int] | None:
    """Values that change with progress; None if a process waits for a disk."""
    ours = proc.read_process(os.getpid())
    assert ours is not None
    pids = proc.read_tree(ours).pids
    if any(_waits_for_a_disk(pid) for pid in pids):
        return None
    others = [pid for pid in pids if pid != ours.pid]
    size = 0
    with suppress(OSError):
        size = log.stat().st_size
    return frozenset(others), sum(map(_bytes_moved, others)), sum(map(_memory, others)), size


def _bytes_moved(pid: int) -> int:
    with suppress(OSError):
        told = dict(line.split(": ", 1) for line in procfs.lines(f"/proc/{pid}/io") if ": " in line)
        return int(told["rchar"]) + int(told["wchar"])
    return 0


def _memory(pid: int) -> int:
    with suppress(OSError):
        return int(procfs.text(f"/proc/{pid}/statm").split()[1]) + proc.huge_pages(pid)
    return 0


def _waits_for_a_disk(pid: int) -> bool:
    with suppress(OSError):
        for name in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                if procfs.behind_the_name(procfs.text(f"{name}/stat"))[0] == _UNINTERRUPTIBLE:
                    return True
    return False


def work_of(pid: int) -> int:
    """A number that grows while a process works: bytes that it moved, and its CPU time; 0 if it has ended."""
    with suppress(OSError):
        user, system = procfs.behind_the_name(procfs.text(f"/proc/{pid}/stat"))[11:13]
        return _bytes_moved(pid) + int(user) + int(system)
    return 0
