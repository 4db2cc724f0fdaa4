"""Dumps do not interrupt the system calls of a program: the calls continue and end as they would have."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest
from checkout import TESTS
from command import Crckpt
from trees import READY_S, wait_for

from crckpt.criu.command import Paths, dump_command
from crckpt.model import DumpOptions
from crckpt.ops.context import Context
from crckpt.ops.dump.dump import dump
from crckpt.ops.dump.request import DumpRequest
from crckpt.tracking.preload import library

PROGRAMS: Final = TESTS / "programs"
FOR_EVER_MS: Final = 1_000_000
TIMEOUT_MS: Final = 4_000
EVENT: Final = {
    **dict.fromkeys(("poll", "ppoll", "select", "epoll_wait", "epoll_pwait", "epoll_pwait2"), 1),
    **dict.fromkeys(("futex", "futex-until", "futex_waitv", "semop", "semtimedop", "accept", "connect"), 0),
    **dict.fromkeys(("read", "recvfrom", "recvmsg", "sendto", "write", "msgrcv", "inotify"), 8),
    "sigtimedwait": signal.SIGRTMIN + 1,
}
"""What each call returns once what it waits for has happened."""
TIMED_OUT: Final = {
    **dict.fromkeys(("poll", "ppoll", "select", "epoll_wait", "epoll_pwait", "epoll_pwait2"), 0),
    **dict.fromkeys(("nanosleep", "clock_nanosleep", "sleep-until"), 0),
    **dict.fromkeys(("futex", "futex-until", "futex_waitv"), -errno.ETIMEDOUT),
    **dict.fromkeys(("semtimedop", "sigtimedwait"), -errno.EAGAIN),
    **dict.fromkeys(("read", "recvfrom", "recvmsg", "sendto", "write", "accept", "connect"), -errno.EAGAIN),
}
"""And once its timeout is over."""
SLEEPS: Final = frozenset(TIMED_OUT) - frozenset(EVENT)
COUNT: Final = len(EVENT) + len(SLEEPS)
EXACT: Final = frozenset({"ppoll", "select", "sleep-until", "futex-until", "futex_waitv"})
"""Calls that wait no longer than they would have without a dump."""
COMMANDS: Final = (("dump",), ("pre-dump",), ("dump", "--incremental"), ("dump", "--stop"))


class WaitingProgram:
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
        """The words of each complete line of output."""
        return [line.split() for line in (self.directory / "out").read_text().splitlines()]

    def calls(self) -> dict[str, tuple[int, int]]:
        """The thread that makes each call, and the call's number."""
        return {words[1]: (int(words[2]), int(words[3])) for words in self.lines() if words[0] == "waits"}

    def results(self) -> dict[str, int]:
        """The results of the calls that have ended."""
        return {words[0]: int(words[1]) for words in self.lines() if len(words) == 3}

    def took_ms(self) -> dict[str, int]:
        """The duration of each ended call."""
        return {words[0]: int(words[2]) for words in self.lines() if len(words) == 3}

    def wait_in_calls(self, count: int) -> None:
        """Wait until so many threads are in their calls."""

        def is_in_calls() -> bool:
            calls = self.calls().values()
            return len(calls) == count and all(number_of_call(tid) == number for tid, number in calls)

        wait_for(is_in_calls, READY_S, f"{count} calls")
        self._all = tuple(process.pid for process in family(self.pid)[:-1])

    def wait_over(self, names: frozenset[str]) -> dict[str, int]:
        """Wait until all of these calls have ended; return their results."""
        wait_for(lambda: names <= self.results().keys(), READY_S, f"{names} to end")
        return {name: result for name, result in self.results().items() if name in names}

    def gone(self) -> None:
        """Wait until every process has ended, and reap it."""
        for pid in (*self._all, self.pid):
            reaped(pid)
        self._process.wait(READY_S)

    def end(self) -> None:
        """End the program, whoever its parent is, and remove all that it has left in the kernel."""
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


def states(pid: int) -> set[str]:
    return {process.status() for process in family(pid)}


def reaped(pid: int) -> None:
    """Wait until an adopted process has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def number_of_call(tid: int) -> int:
    """The system call that a thread waits in; -1 if none."""
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{tid}/syscall").read_text().split()[0])
    return -1


@pytest.fixture(scope="module")
def interrupted_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/programs/interrupted.c, compiled."""
    return built(tmp_path_factory.mktemp("interrupted"), "interrupted.c", "-pthread")


def built(directory: Path, source: str, *options: str) -> Path:
    program = directory / source.removesuffix(".c")
    words = ["cc", "-O1", "-Wall", "-Werror", "-o", str(program), str(PROGRAMS / source), *options]
    subprocess.run(words, check=True)
    return program


@contextmanager
def waiting(program: Path, directory: Path, *words: str, count: int) -> Iterator[WaitingProgram]:
    """A program, running, with so many threads in their calls."""
    running = WaitingProgram(program, directory, *words)
    try:
        running.wait_in_calls(count)
        yield running
    finally:
        running.end()


def dumped(crckpt: Crckpt, running: WaitingProgram, command: tuple[str, ...]) -> None:
    """Dump the program with this command; restore it if the dump ends it."""
    crckpt.run(command[0], str(running.pid), "job", *command[1:])
    if "--incremental" in command:
        crckpt.run(*command[:1], str(running.pid), "job", *command[1:])
    if "--stop" in command:
        running.gone()
        crckpt.run("restore", "job", "--detach")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", ["threads", "leaders"])
def test_system_calls_interrupted_by_a_dump_wait_on_for_their_event(
    crckpt: Crckpt,
    interrupted_program: Path,
    tmp_path: Path,
    kind: str,
    command: tuple[str, ...],
    orphans_are_reaped: None,
) -> None:
    with waiting(interrupted_program, tmp_path / "work", kind, str(FOR_EVER_MS), count=COUNT) as running:
        dumped(crckpt, running, command)
        assert running.results() == {}
        (running.directory / "go").touch()
        assert running.wait_over(frozenset(EVENT)) == EVENT
        assert SLEEPS & running.results().keys() == set(), "calls that sleep are still asleep"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", ["threads", "leaders"])
def test_system_calls_that_an_earlier_stop_interrupted_continue_after_a_dump(
    crckpt: Crckpt,
    interrupted_program: Path,
    tmp_path: Path,
    kind: str,
    command: tuple[str, ...],
    orphans_are_reaped: None,
) -> None:
    """The kernel continues these calls in restart_syscall; signal(7) lists the others."""
    restarted = {"poll", "futex", "futex-until", "nanosleep", "clock_nanosleep"}
    with waiting(interrupted_program, tmp_path / "work", kind, str(FOR_EVER_MS), count=COUNT) as running:
        for process in family(running.pid):
            process.send_signal(signal.SIGSTOP)
        wait_for(lambda: states(running.pid) == {"stopped"}, READY_S, "the stop")
        for process in family(running.pid):
            process.send_signal(signal.SIGCONT)
        tids = [running.calls()[name][0] for name in restarted]
        wait_for(lambda: {number_of_call(tid) for tid in tids} == {219}, READY_S, "restart_syscall")
        dumped(crckpt, running, command)
        assert restarted & running.results().keys() == set()
        (running.directory / "go").touch()
        expected = {name: EVENT[name] for name in restarted if name in EVENT}
        assert running.wait_over(frozenset(expected)) == expected
        assert SLEEPS & running.results().keys() == set()


@pytest.mark.parametrize("command", [("dump",), ("dump", "--stop")], ids=" ".join)
@pytest.mark.parametrize("kind", ["threads", "leaders"])
def test_system_calls_time_out_after_a_dump_and_not_early(
    crckpt: Crckpt,
    interrupted_program: Path,
    tmp_path: Path,
    kind: str,
    command: tuple[str, ...],
    orphans_are_reaped: None,
) -> None:
    with waiting(interrupted_program, tmp_path / "work", kind, str(TIMEOUT_MS), "aio", count=COUNT + 1) as running:
        dumped(crckpt, running, command)
        # The kind "aio" adds io_getevents, which returns 0 events.
        expected = TIMED_OUT | {"io_getevents": 0}
        assert running.wait_over(frozenset(expected)) == expected
        durations_ms = running.took_ms()
        assert all(durations_ms[name] >= TIMEOUT_MS - 1 for name in TIMED_OUT), durations_ms


@pytest.mark.parametrize("command", [("dump",), ("dump", "--incremental"), ("dump", "--stop")], ids=" ".join)
def test_system_calls_of_32_bit_programs_end_at_their_timeout(
    crckpt: Crckpt, tmp_path: Path, command: tuple[str, ...], orphans_are_reaped: None
) -> None:
    program = built(
        tmp_path, "interrupted_32.c", "-m32", "-ffreestanding", "-nostdlib", "-static", "-fno-stack-protector"
    )
    expected = {
        **dict.fromkeys(("poll", "epoll_wait", "nanosleep", "clock_nanosleep"), 0),
        **dict.fromkeys(("semtimedop", "sigtimedwait", "socketcall"), -errno.EAGAIN),
        "futex": -errno.ETIMEDOUT,
    }
    with waiting(program, tmp_path / "work", count=len(expected)) as running:
        dumped(crckpt, running, command)
        assert running.wait_over(frozenset(expected)) == expected
        assert min(running.took_ms().values()) >= TIMEOUT_MS - 1
    # The first checkpoint is shown, because on a busy machine the calls may have ended before the second.
    first = "job~1" if "--incremental" in command else "job"
    found = crckpt.run("show", first, "--ps", "--json").document["result"]["ps"]
    calls = {thread["system_call"] for process in found for thread in process["threads"]}
    assert calls >= {"rt_sigtimedwait", *expected} - {"sigtimedwait"}


@pytest.mark.parametrize("kind", ["threads", "leaders"])
def test_system_calls_continue_after_an_abandoned_dump(
    crckpt: Crckpt, interrupted_program: Path, tmp_path: Path, kind: str, orphans_are_reaped: None
) -> None:
    """crckpt is killed while the tree is frozen."""
    with waiting(interrupted_program, tmp_path / "work", kind, str(FOR_EVER_MS), count=COUNT) as running:
        words = ("dump", str(running.pid), "job", "--stop")
        crckpt.run(*words, status=-signal.SIGKILL, CRCKPT_KILL_AT="manifest.create")
        wait_for(lambda: not any(tracer_of(tid) for tid, _ in running.calls().values()), READY_S, "CRIU to let go")
        (running.directory / "go").touch()
        assert running.wait_over(frozenset(EVENT)) == EVENT
        assert SLEEPS & running.results().keys() == set()


def tracer_of(tid: int) -> int:
    """The tracer of a thread; 0 if it has none or has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{tid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("TracerPid:")).split()[1])
    return 0


@pytest.fixture(scope="module")
def handler_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/programs/handled.c, compiled."""
    return built(tmp_path_factory.mktemp("handled"), "handled.c", "-pthread")


@pytest.mark.parametrize("call", ["poll", "ppoll", "epoll_wait", "epoll_pwait", "futex", "read"])
def test_handler_of_a_signal_during_the_freeze_sees_eintr(
    criu: Path, handler_program: Path, tmp_path: Path, call: str, orphans_are_reaped: None
) -> None:
    """The handler sees EINTR from the same calls as without a dump."""
    with waiting(handler_program, tmp_path / "work", call, count=1) as running:
        script = tmp_path / "script"
        script.write_text(f'#!/bin/sh\n[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ] || kill -USR1 {running.pid}\n')
        script.chmod(0o700)
        (tmp_path / "images").mkdir()
        paths = Paths(tmp_path / "images", tmp_path, script)
        words = dump_command(criu, running.pid, paths, DumpOptions(), leave_running=True)
        subprocess.run([*library.dump_words(criu), *words], check=True)
        wait_for(lambda: running.lines()[1:] != [], READY_S, "the call to return")
        assert running.lines()[1:] == [["interrupted", "1"]]
        (running.directory / "go").touch()
        wait_for(lambda: running.lines()[2:] != [], READY_S, "the call to end")
        assert running.lines()[2:] == [["ended", "1", "1"]]


@pytest.mark.parametrize("call", ["poll", "ppoll", "epoll_wait", "epoll_pwait", "futex"])
def test_handler_pending_during_the_freeze_sees_eintr_after_a_restore(
    crckpt: Crckpt, handler_program: Path, tmp_path: Path, call: str, orphans_are_reaped: None
) -> None:
    with waiting(handler_program, tmp_path / "work", call, count=1) as running:
        os.kill(running.pid, signal.SIGSTOP)
        wait_for(lambda: psutil.Process(running.pid).status() == psutil.STATUS_STOPPED, READY_S, "the stop")
        os.kill(running.pid, signal.SIGUSR1)
        dumped(crckpt, running, ("dump", "--stop"))
        assert running.lines()[1:] == []
        os.kill(running.pid, signal.SIGCONT)
        wait_for(lambda: running.lines()[1:] != [], READY_S, "the call to return")
        assert running.lines()[1:] == [["interrupted", "1"]]


@pytest.mark.parametrize("command", [("dump",), ("pre-dump",), ("dump", "--stop")], ids=" ".join)
@pytest.mark.parametrize("call", ["poll", "ppoll", "epoll_wait", "epoll_pwait"])
def test_system_call_returns_eintr_only_after_a_signal_handler_ran(
    crckpt: Crckpt, handler_program: Path, tmp_path: Path, call: str, command: tuple[str, ...], orphans_are_reaped: None
) -> None:
    """ppoll and epoll_pwait return EINTR exactly once for each handler that ran."""
    with waiting(handler_program, tmp_path / "work", call, count=1) as running:
        for _ in range(3):
            with storm(running.pid):
                crckpt.run(command[0], str(running.pid), "job", *command[1:])
            if "--stop" in command:
                running.gone()
                crckpt.run("restore", "job", "--detach")
        running.wait_in_calls(1)
        (running.directory / "go").touch()
        wait_for(lambda: running.lines()[-1][0] == "ended", READY_S, "the call to end")
        lines = running.lines()
        assert [words for words in lines if words[0] == "spurious"] == []
        assert len(lines) > 10, "signals came"
        if call in ("ppoll", "epoll_pwait"):
            _, ran, seen = lines[-1]
            assert ran == seen


@contextmanager
def storm(pid: int) -> Iterator[None]:
    """SIGUSR1 again and again, to this process alone."""
    is_over = threading.Event()
    process = os.pidfd_open(pid)

    def send() -> None:
        with suppress(ProcessLookupError):
            while not is_over.wait(0.0005):
                signal.pidfd_send_signal(process, signal.SIGUSR1)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield
    finally:
        is_over.set()
        sending.join()
        os.close(process)


@pytest.mark.parametrize(
    ("before", "options"),
    [((), ((), ("--pre-copy",), ())), (("unshare", "--mount"), ((), ()))],
    ids=["plain", "own mounts"],
)
def test_tail_prints_lines_appended_after_a_dump(
    crckpt: Crckpt,
    tmp_path: Path,
    before: tuple[str, ...],
    options: tuple[tuple[str, ...], ...],
    orphans_are_reaped: None,
) -> None:
    """tail is dumped several times, also in rounds."""
    followed, out = tmp_path / "followed", tmp_path / "out"
    followed.write_text("first\n")
    out.touch()
    # Descriptors from outside of its mounts could not be dumped.
    words = [*before, "sh", "-c", 'exec tail -f "$1" </dev/null >"$2" 2>&1', "sh", str(followed), str(out)]
    tail = subprocess.Popen(words, start_new_session=True)
    try:
        wait_for(lambda: out.read_text() == "first\n", READY_S, "tail")
        for option in options:
            crckpt.run("dump", str(tail.pid), "tail", *option)
        with followed.open("a") as more:
            more.write("second\n")
        wait_for(lambda: out.read_text() != "first\n" or tail.poll() is not None, READY_S, "tail to go on")
        assert out.read_text() == "first\nsecond\n"
    finally:
        tail.kill()
        tail.wait()


def test_dump_without_the_library_warns_of_interrupted_calls(
    crckpt: Crckpt, interrupted_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orphans_are_reaped: None
) -> None:
    """The library is missing where crckpt was installed without a C compiler."""
    # What is installed here stays: other tests, and other programs, use it.
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "none")
    with waiting(interrupted_program, tmp_path / "work", "threads", str(FOR_EVER_MS), count=COUNT) as running:
        done = dump(DumpRequest(target=str(running.pid), job="job"), Context(store=crckpt.store))
        threads = {name: tid for name, (tid, _) in running.calls().items()}
        wait_for(lambda: "poll" in running.results(), READY_S, "poll to return")
    assert done.checkpoint is not None
    warned = {found.what for found in done.plan.warnings if found.key == "call-interrupted"}
    for call in ("poll", "epoll_wait", "futex", "nanosleep", "semop"):
        warning = (
            f"{call} of thread {threads[call]} (PID {running.pid}) returns EINTR after the dump and after a restore"
        )
        assert warning in warned
    assert not any(f" {threads['sleep-until']} " in what for what in warned), "its time is absolute"
