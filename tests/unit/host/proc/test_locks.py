"""Holders of the locks on a file, however many there are."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from growth import grows_linearly, spend_once

from crckpt.host.proc import file_users
from crckpt.host.proc.file_users import find_writers, read_held_locks

MANY_LOCKS: Final = 2000
LOCKING_PROGRAM: Final = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
# The kernel looks for the place of a lock from the first one.
for start in reversed(range(0, 2 * int(sys.argv[2]), 2)):
    fcntl.lockf(file, fcntl.LOCK_SH, 1, start)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(file: Path, count: int) -> Iterator[int]:
    """A program that holds so many locks on a new file."""
    file.touch()
    words = [sys.executable, "-c", LOCKING_PROGRAM, str(file), str(count)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


def test_file_locks_of_other_processes_are_found(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with locked(file, MANY_LOCKS) as pid, file.open("r+b") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        held = read_held_locks([str(file)])[str(file)]
        assert {each.pid for each in held if each.kind == "POSIX"} == {pid}
        assert sum(each.kind == "POSIX" for each in held) == MANY_LOCKS
        assert [each.comm != "?" for each in held if each.kind == "flock"] == [True]


def test_time_is_linear_in_the_number_of_locks(tmp_path: Path) -> None:
    """Each program is examined once. Any user who can read a file may hold many locks on it."""
    with ExitStack() as programs:

        def prepare(count: int) -> Callable[[], object]:
            file = tmp_path / str(count)
            programs.enter_context(locked(file, count))
            return partial(read_held_locks, [str(file)])

        assert grows_linearly(prepare, MANY_LOCKS)


PROGRAM_THAT_LOCKS_AND_UNLOCKS: Final = """
import fcntl, sys
files = [open(sys.argv[1] + str(number), "w") for number in range(20)]
print(flush=True)
while True:
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX)
    for file in files:
        fcntl.flock(file, fcntl.LOCK_UN)
"""


def test_file_locks_are_found_while_other_locks_change(tmp_path: Path) -> None:
    """The kernel returns a long list in parts, and continues each by the number of lines."""
    file = tmp_path / "file"
    busy = [sys.executable, "-c", PROGRAM_THAT_LOCKS_AND_UNLOCKS, str(tmp_path / "busy")]
    with locked(file, MANY_LOCKS), subprocess.Popen(busy, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            assert [len(read_held_locks([str(file)])[str(file)]) for _ in range(20)] == [MANY_LOCKS] * 20
        finally:
            other.kill()


PROGRAM_WITH_AN_INHERITED_LOCK: Final = """
import fcntl, os, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_file_lock_is_found_although_the_process_that_took_it_has_ended(tmp_path: Path) -> None:
    """A child has inherited the lock. In a PID namespace, as in a container, /proc/locks does not show the lock."""
    file = tmp_path / "file"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM_WITH_AN_INHERITED_LOCK, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as taker:
        assert taker.stdout is not None
        holder = int(taker.stdout.readline())
        taker.wait()
        assert [(lock.kind, lock.pid) for lock in read_held_locks([str(file)])[str(file)]] == [("flock", holder)]


def test_search_for_file_locks_ends_although_other_files_have_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each page of /proc/locks the kernel starts from the first lock: the time grows with the square."""
    file = tmp_path / "file"
    file.touch()
    look = partial(read_held_locks, [str(file)])
    with ExitStack() as programs:
        for number in range(10):
            programs.enter_context(locked(tmp_path / str(number), MANY_LOCKS))
        seconds = spend_once(look)
        monkeypatch.setattr(file_users, "_LOOKS_FOR_S", 0.001)
        limited = spend_once(look)
    # What is left is to look at the programs themselves.
    assert 1.5 * limited < seconds


PROGRAM_WITH_EPOLLS: Final = """
import os, select, sys
poll = select.epoll()
watched = os.eventfd(0)
for number in range(100, 100 + int(sys.argv[1])):
    poll.register(os.dup2(watched, number))
os.closerange(100, 1000)
copies = [os.dup(poll.fileno()) for _ in range(100)]
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("find", [read_held_locks, find_writers], ids=["locks", "writers"])
def test_search_for_file_locks_does_not_read_epolls(tmp_path: Path, find: Callable[[list[str]], object]) -> None:
    """The kernel lists all that an epoll watches for each of its descriptors, of which any user may have many."""
    file = tmp_path / "file"
    file.touch()

    def spend(watches: int) -> float:
        words = [sys.executable, "-c", PROGRAM_WITH_EPOLLS, str(watches)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            spent = min(spend_once(partial(find, [str(file)])) for _ in range(3))
            process.communicate()
            return spent

    with file.open("r+b") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        assert spend(800) < 3 * spend(1)
