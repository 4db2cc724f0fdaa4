"""The processes whose memory is filled, and what they have forked meanwhile: they must not run on with pages of zeros.

If the last descriptor of a userfaultfd is closed, the kernel supplies zeros for all pages that are still missing. So
two processes hold these descriptors, in one table: the one that fills, and its parent, which does nothing but wait. If
the first one dies, the parent ends the tree, and only then itself. If both are killed, the tree waits, as each restored
process keeps its own userfaultfd open (`crckpt.helper.calls.taken_userfaultfd`), and the crckpt that finds the tree
ends it: `end_unfilled`. Only children that were forked meanwhile find zeros then.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from crckpt.host import proc
from crckpt.host.proc import Identity, procfs
from crckpt.host.proc.status import Stat, read_stat
from crckpt.host.process.signals import send_signal
from crckpt.host.syscalls.own_process import fork_with_same_descriptors
from crckpt.ops.lazy.marks import is_incomplete, is_unfilled, wait_until_released


class Family(Struct, frozen=True):
    """Restored processes, their users, and the layouts of their address spaces."""

    tasks: tuple[Identity, ...] = ()
    users: frozenset[int] = frozenset()
    layouts: frozenset[tuple[int, int, int]] = frozenset()

    @classmethod
    def of(cls, tasks: Iterable[Identity]) -> Family:
        """Look at restored processes, which live now."""
        found = tuple(tasks)
        layouts = (stat.layout for each in found if (stat := _read(each.pid)) is not None and stat.start == each.start)
        return cls(found, frozenset(user for each in found for user in _find_user(each)), frozenset(layouts))

    def find_living(self) -> Iterator[Identity]:
        """Find those that live, and all that descend from them."""
        stats = {pid: stat for pid in procfs.pids() if (stat := _read(pid)) is not None}
        found = {each.pid for each in self.tasks if each.pid in stats and stats[each.pid].start == each.start}
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.ppid, []).append(pid)
        waiting = [*found]
        while waiting:
            new = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
            found.update(new)
            waiting.extend(new)
        since = max((each.start for each in self.tasks), default=0)
        for pid, stat in stats.items():
            process = Identity(procfs.boot_id(), pid, stat.start)
            # Or a child that has lost its parent, and does not run another program yet. It has its parent's layout,
            # which differs each time that a program is started. Without address space randomization other users may
            # have the same.
            if pid in found or (
                stat.start >= since
                and stat.layout in self.layouts
                and not self.users.isdisjoint(_find_user(process))
                and is_incomplete(pid)
            ):
                yield process


def _read(pid: int) -> Stat | None:
    with suppress(OSError):
        stat = read_stat(pid)
        return None if stat.state in ("Z", "X") else stat
    return None


def _find_user(task: Identity) -> Iterator[int]:
    process = proc.read_process(task.pid)
    if process is not None and process.identity == task:
        yield process.uids[0]


_SIZE: Final = 4 << 20
_POLL_S: Final = 0.01


class GuardedTree:
    """The processes to end, which both processes see."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)  # shared

    def write(self, family: Family) -> None:
        """Name the processes. Raises ValueError if they are too many."""
        content = msgspec.json.encode(family)
        self._memory[: len(content) + 1] = content + b"\n"

    def read(self) -> Family:
        """Return the processes."""
        line = self._memory.readline()
        self._memory.seek(0)
        return msgspec.json.decode(line, type=Family) if line.strip(b"\0") else Family()


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
        _end(Family.of([root]))


def _end(family: Family) -> None:
    while found := set(family.find_living()):
        for process in found:
            send_signal(process, signal.SIGKILL)
        time.sleep(_POLL_S)
