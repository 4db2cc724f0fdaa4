"""Guard a tree whose memory is being filled: it must not run on with pages of zeros.

If the last descriptor of a userfaultfd is closed, the kernel supplies zeros for all pages that are still missing. So
two processes hold these descriptors, in one table: the one that fills, and its parent, which does nothing but wait. If
the first one dies, the parent ends the tree, and only then itself. If both are killed, the tree waits, as each restored
process keeps its own userfaultfd open (`crckpt.helper.calls.pinned_userfaultfd`), and the crckpt that finds the tree
ends it: `end_unfilled`. Only children that were forked meanwhile find zeros then.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from crckpt.host import proc
from crckpt.host.proc import Identity, procfs
from crckpt.host.process.send_signal import send_signal
from crckpt.host.syscalls.clone import fork_with_same_descriptors
from crckpt.ops.lazy.marks import is_incomplete, is_unfilled, wait_until_released

_SIZE: Final = 4 << 20
_POLL_S: Final = 0.01


class Processes(Struct, frozen=True):
    """Restored processes, their users, and their programs (device and inode)."""

    tasks: tuple[Identity, ...] = ()
    users: frozenset[int] = frozenset()
    programs: frozenset[tuple[int, int]] = frozenset()


class GuardedTree:
    """The processes to end, which both processes see."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)  # shared

    def write(self, tasks: Iterable[Identity]) -> None:
        """Name the processes, which live now. Raises ValueError if they are too many."""
        content = msgspec.json.encode(_look_at(tasks))
        self._memory[: len(content) + 1] = content + b"\n"

    def read(self) -> Processes:
        """Return the processes."""
        line = self._memory.readline()
        self._memory.seek(0)
        return msgspec.json.decode(line, type=Processes) if line.strip(b"\0") else Processes()


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


def end_unfilled(root: Identity) -> None:
    """Wait while a helper fills the memory of this tree. End the tree if helper and guard were killed before that."""
    wait_until_released(root)
    if is_unfilled(root):
        _end(_look_at([root]))


def _look_at(tasks: Iterable[Identity]) -> Processes:
    found = tuple(tasks)
    users = frozenset(user for task in found for user in _find_users(task))
    living = (task.pid for task in found if task.keeps_pid)
    return Processes(found, users, frozenset(program for pid in living for program in _find_program(pid)))


def _end(processes: Processes) -> None:
    """End the processes, and what they have forked meanwhile; return when all are gone."""
    while found := set(_find_living(processes)):
        for process in found:
            send_signal(process, signal.SIGKILL)
        time.sleep(_POLL_S)


def _find_living(processes: Processes) -> Iterator[Identity]:
    for task in processes.tasks:
        root = proc.read_process(task.pid)
        if root is not None and root.identity == task:
            yield from (each.identity for each in proc.read_tree(root).processes if not each.has_ended)
    # A child that was forked meanwhile may have lost its parent. Until it runs another program, it has that of the
    # tree.
    since = max((task.start for task in processes.tasks), default=0)
    for pid in procfs.pids():
        process = proc.identify(pid)
        # Other users have trees of the same program.
        if process is None or process.start < since or processes.users.isdisjoint(_find_users(process)):
            continue
        if not processes.programs.isdisjoint(_find_program(pid)) and is_incomplete(pid):
            yield process


def _find_users(task: Identity) -> Iterator[int]:
    process = proc.read_process(task.pid)
    if process is not None and process.start == task.start:
        yield process.uids[0]


def _find_program(pid: int) -> Iterator[tuple[int, int]]:
    with suppress(OSError):
        found = Path(f"/proc/{pid}/exe").stat()
        yield found.st_dev, found.st_ino
