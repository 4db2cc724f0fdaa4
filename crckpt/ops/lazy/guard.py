"""Guard a tree whose memory is being filled: it must not run on with pages of zeros.

If the last descriptor of a userfaultfd is closed, the kernel supplies zeros for all pages that are still missing. So
two processes hold these descriptors, in one table: the one that fills, and its parent, which does nothing but wait. If
the first one dies, the parent ends the tree, and only then itself. If both are killed, the crckpt that finds the tree
ends it: `end_unfilled`.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from crckpt.host import proc
from crckpt.host.process.send_signal import send_signal
from crckpt.host.syscalls.clone import fork_with_same_descriptors
from crckpt.ops.lazy.marks import is_incomplete, is_unfilled, wait_until_released

_SIZE: Final = 4 << 20
_POLL_S: Final = 0.01

_Task = tuple[int, int]


class GuardedTree:
    """The processes to end: PIDs and start times, which both processes see."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)  # shared

    def write(self, tasks: tuple[_Task, ...]) -> None:
        """Name the processes. Raises ValueError if they are too many."""
        content = msgspec.json.encode(tasks)
        self._memory[: len(content) + 1] = content + b"\n"

    def read(self) -> tuple[_Task, ...]:
        """Return the processes."""
        line = self._memory.readline()
        self._memory.seek(0)
        return msgspec.json.decode(line, type=tuple[_Task, ...]) if line.strip(b"\0") else ()


def fork_guarded(tree: GuardedTree) -> None:
    """Return in a child. Its parent waits for the child's end; if that is no success, it ends `tree`. Then it exits."""
    child = fork_with_same_descriptors()
    if child == 0:
        return
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        if status != 0:
            _end(tree.read())
    finally:
        os._exit(0 if status == 0 else 1)


def end_unfilled(root: int, start: int) -> None:
    """Wait while a helper fills the memory of this tree. End the tree if helper and guard were killed before that."""
    wait_until_released(root, start)
    if is_unfilled(root, start):
        _end(((root, start),))


def _end(tasks: tuple[_Task, ...]) -> None:
    """End the processes, and what they have forked meanwhile; return when all are gone."""
    users = {user for pid, start in tasks for user in _find_users(pid, start)}
    programs = {program for pid, start in tasks if proc.start_time(pid) == start for program in _find_program(pid)}
    while found := set(_find_living(tasks, programs, users)):
        for pid, start in found:
            send_signal(pid, signal.SIGKILL, start)
        time.sleep(_POLL_S)


def _find_living(tasks: tuple[_Task, ...], programs: set[tuple[int, int]], users: set[int]) -> Iterator[_Task]:
    """Find those processes, as PIDs and start times."""
    for pid, start in tasks:
        root = proc.read_process(pid)
        if root is not None and root.start == start:
            living = (each for each in proc.read_tree(root).processes if each.state not in ("zombie", "dead"))
            yield from ((each.pid, each.start) for each in living)
    # A child that was forked meanwhile may have lost its parent. Until it runs another program, it has that of the
    # tree.
    since = max((start for _, start in tasks), default=0)
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            pid = int(path.name)
            began = proc.start_time(pid)
            # Other users have trees of the same program.
            if began is None or began < since or not users & set(_find_users(pid, began)):
                continue
            if programs & set(_find_program(pid)) and is_incomplete(pid):
                yield pid, began


def _find_users(pid: int, start: int) -> Iterator[int]:
    process = proc.read_process(pid)
    if process is not None and process.start == start:
        yield process.uids[0]


def _find_program(pid: int) -> Iterator[tuple[int, int]]:
    with suppress(OSError):
        found = Path(f"/proc/{pid}/exe").stat()
        yield found.st_dev, found.st_ino
