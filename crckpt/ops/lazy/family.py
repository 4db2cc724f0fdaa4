"""The processes whose memory is filled, and what they have forked meanwhile: they must not see pages of zeros.

If the last descriptor of a userfaultfd is closed, the kernel supplies zeros for all pages that are still missing. So
two processes hold these descriptors, in one table: the one that fills, and its parent, which does nothing but wait. If
the first one dies, the parent ends the tree, and only then itself. If both are killed, the tree waits, as each restored
process keeps its own userfaultfd open (`crckpt.helper.calls.taken_userfaultfd`), and the crckpt that finds the tree
ends it: `end_unfilled`. Only children that were forked meanwhile find zeros then.

A dump would miss what is not there yet, so such a tree has a mark: a file that the helper keeps locked as long as it
fills, and removes once all memory is there. If the tree had to be ended, it says why. If helper and guard were killed,
it is there without a lock: if its tree lives, that waits for its memory; otherwise the next helper removes it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.helper.kinds import FILLER, HelperRecord, find_records, record_path
from crckpt.host import proc
from crckpt.host.disk.own_files import make_runtime_directory
from crckpt.host.proc import Identity, procfs
from crckpt.host.proc.status import Stat, ask_of, read_stat, real_user
from crckpt.host.process.signals import send_signal
from crckpt.host.syscalls.own_process import fork_with_same_descriptors

_WAITS: Final = re.compile(r"^VmFlags:.* um\b", re.MULTILINE)


def open_mark(root: Identity) -> int:
    """Make the mark of a tree, locked; return its descriptor. Raises OSError."""
    path = record_path(FILLER, root)
    make_runtime_directory(path)
    # Remove the marks of helpers that have ended, except for those that say why, and those of living trees.
    for mark, descriptor in _open_marks():
        try:
            with suppress(OSError):
                # Whoever waits for it holds a lock, too.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(descriptor).st_size and not mark.root.keeps_pid:
                    mark.path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False)):
                return descriptor
        # Another helper took it for a dead one before it was locked.
        os.close(descriptor)


def wait_until_released(root: Identity) -> None:
    """Wait while a helper fills the memory of this tree, or ends it."""
    with suppress(FileNotFoundError):
        descriptor = os.open(record_path(FILLER, root), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def remove_mark(root: Identity) -> None:
    """Remove the mark of a tree whose memory is complete."""
    record_path(FILLER, root).unlink(missing_ok=True)


def is_unfilled(root: Identity) -> bool:
    """Return whether this tree lives, and nobody fills its memory any more. Call `wait_until_released` before."""
    return record_path(FILLER, root).exists() and root.keeps_pid


def is_incomplete(pid: int) -> bool:
    """Return whether a userfaultfd supplies pages that this process lacks."""
    with suppress(OSError):
        return _WAITS.search(procfs.text(f"/proc/{pid}/smaps")) is not None
    return False


def wait_until_complete(root: int, say: Callable[[str], None]) -> None:
    """Wait while crckpt fills the memory of a tree; `say` so. Raises HostCannot if nobody fills it any more."""
    is_said = False
    for _, descriptor in _open_marks():
        try:
            # A child may have left the tree that the mark names, so it does not tell which processes it is of.
            if (process := proc.read_process(root)) and any(map(is_incomplete, proc.read_tree(process).pids)):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not is_said:
                        say(f"waiting until all memory of PID {root} is there: crckpt still reads it from a store ...")
                    is_said = True
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)
    if (identity := proc.identify(root)) is not None:
        wait_until_released(identity)
        if is_unfilled(identity):
            raise HostCannot(
                f"PID {root} waits for memory that nobody fills: the helper that did so was killed",
                hint=f"end it (kill -9 {root}) and restore its last checkpoint: crckpt restore JOB",
            )


def _open_marks() -> Iterator[tuple[HelperRecord, int]]:
    for mark in find_records(FILLER):
        with suppress(OSError):
            yield mark, os.open(mark.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


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
        parents = tuple(proc.read_parents())
        users = {pid: real_user(pid) for pid, _ in parents}
        ours = [each.pid for each in self.tasks if (stat := _read(each.pid)) is not None and stat.start == each.start]
        found = {*proc.find_below(ours, parents)}
        since = max((each.start for each in self.tasks), default=0)
        for pid, user in users.items():
            if (pid not in found and user not in self.users) or (stat := _read(pid)) is None:
                continue
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
        stat = ask_of(pid, lambda: read_stat(pid))
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
