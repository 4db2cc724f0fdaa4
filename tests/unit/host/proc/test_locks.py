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

from growth import grows_linearly

from crckpt.host.proc.file_users import read_held_locks

MANY: Final = 2000
TAKES: Final = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
for start in range(0, 2 * int(sys.argv[2]), 2):
    fcntl.lockf(file, fcntl.LOCK_SH, 1, start)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(file: Path, count: int) -> Iterator[int]:
    """A program that holds so many locks on a new file."""
    file.touch()
    words = [sys.executable, "-c", TAKES, str(file), str(count)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


def test_locks_of_others_are_found(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with locked(file, MANY) as pid, file.open("r+b") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        held = read_held_locks([str(file)])[str(file)]
        assert {each.pid for each in held if each.kind == "POSIX"} == {pid}
        assert sum(each.kind == "POSIX" for each in held) == MANY
        assert [each.comm != "?" for each in held if each.kind == "flock"] == [True]


def test_time_is_linear_in_the_number_of_locks(tmp_path: Path) -> None:
    """Each program is examined once. Any user who can read a file may hold many locks on it."""
    with ExitStack() as programs:

        def prepare(count: int) -> Callable[[], object]:
            file = tmp_path / str(count)
            programs.enter_context(locked(file, count))
            return partial(read_held_locks, [str(file)])

        assert grows_linearly(prepare, MANY)


RELEASES: Final = """
import fcntl, sys
files = [open(sys.argv[1] + str(number), "w") for number in range(20)]
print(flush=True)
while True:
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX)
    for file in files:
        fcntl.flock(file, fcntl.LOCK_UN)
"""


def test_changing_locks_hide_no_others(tmp_path: Path) -> None:
    """The kernel gives a long list in parts, and counts lines from one to the next."""
    file = tmp_path / "file"
    busy = [sys.executable, "-c", RELEASES, str(tmp_path / "busy")]
    with locked(file, MANY), subprocess.Popen(busy, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            assert [len(read_held_locks([str(file)])[str(file)]) for _ in range(20)] == [MANY] * 20
        finally:
            other.kill()


LEAVES: Final = """
import fcntl, os, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_lock_with_an_ended_taker_is_found(tmp_path: Path) -> None:
    """A child has inherited it. In a PID namespace, as in a container, /proc/locks does not show it."""
    file = tmp_path / "file"
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as taker:
        assert taker.stdout is not None
        holder = int(taker.stdout.readline())
        taker.wait()
        assert [(lock.kind, lock.pid) for lock in read_held_locks([str(file)])[str(file)]] == [("flock", holder)]
