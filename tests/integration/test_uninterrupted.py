"""A program does not notice a dump by its system calls: those that it waits in go on, and end as they would have."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest
from command import Crckpt
from trees import READY_S, wait_for

PROGRAMS: Final = Path(__file__).parent.parent / "programs"
FOR_EVER_MS: Final = 1_000_000
TIMEOUT_MS: Final = 4_000
EVENT: Final = {
    **dict.fromkeys(("poll", "ppoll", "select", "epoll_wait", "epoll_pwait", "epoll_pwait2"), 1),
    **dict.fromkeys(("futex", "futex-until", "futex_waitv", "semop", "semtimedop", "accept"), 0),
    **dict.fromkeys(("read", "recvfrom", "recvmsg", "sendto", "write", "msgrcv", "inotify"), 8),
    "sigtimedwait": signal.SIGRTMIN + 1,
}
"""What each call returns once what it waits for has happened."""
TIMED_OUT: Final = {
    **dict.fromkeys(("poll", "ppoll", "select", "epoll_wait", "epoll_pwait", "epoll_pwait2"), 0),
    **dict.fromkeys(("nanosleep", "clock_nanosleep", "sleep-until"), 0),
    **dict.fromkeys(("futex", "futex-until", "futex_waitv"), -errno.ETIMEDOUT),
    **dict.fromkeys(("semtimedop", "sigtimedwait"), -errno.EAGAIN),
    **dict.fromkeys(("read", "recvfrom", "recvmsg", "sendto", "write", "accept"), -errno.EAGAIN),
}
"""And once its timeout is over."""
SLEEPS: Final = frozenset(TIMED_OUT) - frozenset(EVENT)
COUNT: Final = len(EVENT) + len(SLEEPS)
EXACT: Final = frozenset({"ppoll", "select", "sleep-until", "futex-until", "futex_waitv"})
"""Calls that wait no longer than they would have without a dump."""
WAYS: Final = (("dump",), ("pre-dump",), ("dump", "--incremental"), ("dump", "--stop"))


class Waiting:
    """A program of tests/programs that waits in system calls, in `directory`."""

    def __init__(self, program: Path, directory: Path, *words: str) -> None:
        directory.mkdir()
        self.directory = directory
        with (directory / "out").open("ab") as out:
            self._process = subprocess.Popen(
                [str(program), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=directory,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def lines(self) -> list[list[str]]:
        """What it has said: words of whole lines."""
        return [line.split() for line in (self.directory / "out").read_text().splitlines()]

    def calls(self) -> dict[str, tuple[int, int]]:
        """The thread that makes each call, and the call's number."""
        return {words[1]: (int(words[2]), int(words[3])) for words in self.lines() if words[0] == "waits"}

    def results(self) -> dict[str, int]:
        """What came of calls that have ended."""
        return {words[0]: int(words[1]) for words in self.lines() if len(words) == 3}

    def took_ms(self) -> dict[str, int]:
        """How long they took."""
        return {words[0]: int(words[2]) for words in self.lines() if len(words) == 3}

    def wait_in_calls(self, count: int) -> None:
        """Wait until so many threads are in their calls."""

        def is_in_calls() -> bool:
            calls = self.calls().values()
            return len(calls) == count and all(number_of_call(tid) == number for tid, number in calls)

        wait_for(is_in_calls, READY_S, f"{count} calls")
        self._all = tuple(process.pid for process in family(self.pid)[:-1])

    def wait_over(self, names: frozenset[str]) -> dict[str, int]:
        """Wait until all of these calls have ended; what came of them."""
        wait_for(lambda: names <= self.results().keys(), READY_S, f"{names} to end")
        return {name: result for name, result in self.results().items() if name in names}

    def gone(self) -> None:
        """Wait until all of it has ended, and reap it."""
        for pid in self._all:
            reaped(pid)
        self._process.wait(READY_S)

    def end(self) -> None:
        """End it, whoever its parent is, and all that it has left in the kernel."""
        for process in family(self.pid):
            with suppress(psutil.NoSuchProcess):
                process.kill()
            reaped(process.pid)
        self._process.wait()
        for words in self.lines():
            if words[0] in ("semaphore", "queue"):
                subprocess.run(["ipcrm", f"--{words[0]}-id", words[1]], check=False, capture_output=True)


def family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [*root.children(recursive=True), root]
    return []


def reaped(pid: int) -> None:
    """Of a process that we have adopted: it has ended when this returns."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def number_of_call(tid: int) -> int:
    """The system call that a thread waits in; -1 if none."""
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{tid}/syscall").read_text().split()[0])
    return -1


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/programs/interrupted.c, compiled."""
    return built(tmp_path_factory.mktemp("interrupted"), "interrupted.c", "-pthread")


def built(directory: Path, source: str, *options: str) -> Path:
    program = directory / source.removesuffix(".c")
    words = ["cc", "-O1", "-Wall", "-Werror", "-o", str(program), str(PROGRAMS / source), *options]
    subprocess.run(words, check=True)
    return program


@contextmanager
def waiting(program: Path, directory: Path, *words: str, count: int) -> Iterator[Waiting]:
    """A program, running, with so many threads in their calls."""
    running = Waiting(program, directory, *words)
    try:
        running.wait_in_calls(count)
        yield running
    finally:
        running.end()


def dumped(crckpt: Crckpt, running: Waiting, way: tuple[str, ...]) -> None:
    """Dump it in this way, with crckpt; if that ends it, restore it."""
    crckpt.run(way[0], str(running.pid), "job", *way[1:])
    if "--incremental" in way:
        crckpt.run(*way[:1], str(running.pid), "job", *way[1:])
    if "--stop" in way:
        running.gone()
        crckpt.run("restore", "job", "--detach")


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("kind", ["threads", "leaders"])
def test_calls_go_on_until_what_they_wait_for_happens(
    crckpt: Crckpt, interrupted: Path, tmp_path: Path, kind: str, way: tuple[str, ...], adopted: None
) -> None:
    with waiting(interrupted, tmp_path / "work", kind, str(FOR_EVER_MS), count=COUNT) as running:
        dumped(crckpt, running, way)
        assert running.results() == {}
        (running.directory / "go").touch()
        assert running.wait_over(frozenset(EVENT)) == EVENT
        assert SLEEPS & running.results().keys() == set(), "those that sleep, sleep on"


@pytest.mark.parametrize("way", [("dump",), ("dump", "--stop")], ids=" ".join)
@pytest.mark.parametrize("kind", ["threads", "leaders"])
def test_calls_end_by_their_timeout(
    crckpt: Crckpt, interrupted: Path, tmp_path: Path, kind: str, way: tuple[str, ...], adopted: None
) -> None:
    with waiting(interrupted, tmp_path / "work", kind, str(TIMEOUT_MS), "aio", count=COUNT + 1) as running:
        dumped(crckpt, running, way)
        expected = TIMED_OUT | {"io_getevents": 0}
        assert running.wait_over(frozenset(expected)) == expected
        took = running.took_ms()
        assert all(took[name] >= TIMEOUT_MS - 1 for name in TIMED_OUT), took


def test_tail_lives_and_prints_what_is_appended_later(crckpt: Crckpt, tmp_path: Path, adopted: None) -> None:
    """Dumped twice, once in rounds."""
    followed, out = tmp_path / "followed", tmp_path / "out"
    followed.write_text("first\n")
    with out.open("wb") as printed:
        null = subprocess.DEVNULL
        tail = subprocess.Popen(
            ["tail", "-f", str(followed)], stdin=null, stdout=printed, stderr=printed, start_new_session=True
        )
    try:
        wait_for(lambda: out.read_text() == "first\n", READY_S, "tail")
        for words in ((), ("--pre-copy",), ()):
            crckpt.run("dump", str(tail.pid), "tail", *words)
        with followed.open("a") as more:
            more.write("second\n")
        wait_for(lambda: out.read_text() != "first\n" or tail.poll() is not None, READY_S, "tail to go on")
        assert out.read_text() == "first\nsecond\n"
    finally:
        tail.kill()
        tail.wait()
