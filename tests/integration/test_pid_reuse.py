"""A PID is held from the first look on: another process that got the number meanwhile is neither saved nor ended."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from command import Crckpt
from dump_moments import ENDS_WITHIN_S, manifests
from incremental import NO_TRACKER, wrapper
from msgspec.structs import replace
from trees import wait_for

from crckpt.host import proc
from crckpt.host.process.pidfd import HeldProcess

_SYS_CLONE3 = 435
SLEEP = ("/bin/sleep", "1000")


class Sleeper:
    """A program that can be replaced by another program with the same PID."""

    def __init__(self) -> None:
        null = subprocess.DEVNULL
        process = subprocess.Popen(SLEEP, stdin=null, stdout=null, stderr=null, start_new_session=True)
        self.pid = process.pid
        process.returncode = 0  # reaped here
        wait_for(lambda: psutil.Process(self.pid).name() == "sleep", ENDS_WITHIN_S, "the program")

    def replace(self) -> None:
        """End the process, and start another one with its PID."""
        self.end()
        assert started_as(self.pid) == self.pid
        wait_for(lambda: psutil.Process(self.pid).name() == "sleep", ENDS_WITHIN_S, "the other program")

    def end(self) -> None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def started_as(pid: int) -> int:
    """A program with this PID, which leads its session."""
    number = ctypes.c_int(pid)
    words = [0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(number), 1, 0]
    arguments = (ctypes.c_uint64 * 11)(*words)
    # A library whose calls keep the interpreter's lock: the child must have it.
    made: int = ctypes.PyDLL(None, use_errno=True).syscall(_SYS_CLONE3, ctypes.byref(arguments), 88)
    if made == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.closerange(3, 1024)
        os.execv(SLEEP[0], SLEEP)  # noqa: S606
    return made


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    process = Sleeper()
    yield process
    process.end()


def is_untouched(pid: int) -> None:
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_SLEEPING, ENDS_WITHIN_S, "the other to continue")
    process = proc.read_process(pid)
    assert process is not None
    assert process.tracer == 0


@pytest.mark.parametrize("stop", [True, False], ids=["stop", "keeps-running"])
@pytest.mark.parametrize("at", ["transaction.mkdir", "hold.commit"])
def test_pid_reused_by_another_process_is_refused(crckpt: Crckpt, sleeper: Sleeper, at: str, stop: bool) -> None:
    """The PID is reused after the first look, or when CRIU is about to freeze the tree."""
    crckpt.run("dump", str(sleeper.pid), "job")
    words = ("--stop",) if stop else ()
    dump = crckpt.start("dump", str(sleeper.pid), "job", *words, CRCKPT_STOP_AT=at)
    wait_for(lambda: psutil.Process(dump.pid).status() == psutil.STATUS_STOPPED, ENDS_WITHIN_S, "crckpt to stop")
    sleeper.replace()
    dump.send_signal(signal.SIGCONT)
    out, error = dump.communicate(timeout=ENDS_WITHIN_S)
    assert dump.returncode == 14, out + error
    assert f"PID {sleeper.pid} ended, and another process (sleep) now has its PID" in error
    assert "no checkpoint was made" in error
    is_untouched(sleeper.pid)
    assert manifests(crckpt.store) == 1
    assert not list(crckpt.store.glob("tmp/*"))
    crckpt.run("dump", str(sleeper.pid), "job", "--stop")


@pytest.mark.parametrize("stop", [True, False], ids=["stop", "keeps-running"])
@pytest.mark.parametrize("at", ["transaction.mkdir", "hold.commit"])
def test_dump_of_a_program_that_ends_before_the_freeze_has_its_own_exit_code(
    crckpt: Crckpt, sleeper: Sleeper, at: str, stop: bool
) -> None:
    """The exit code says that crckpt did nothing to the program."""
    crckpt.run("dump", str(sleeper.pid), "job")
    words = ("--stop",) if stop else ()
    dump = crckpt.start("dump", str(sleeper.pid), "job", *words, "--json", CRCKPT_STOP_AT=at)
    wait_for(lambda: psutil.Process(dump.pid).status() == psutil.STATUS_STOPPED, ENDS_WITHIN_S, "crckpt to stop")
    sleeper.end()
    dump.send_signal(signal.SIGCONT)
    out, output = dump.communicate(timeout=ENDS_WITHIN_S)
    assert dump.returncode == 14, out + output
    error = json.loads(out)["error"]
    assert error["code"] == 14
    assert str(sleeper.pid) in error["message"]
    assert manifests(crckpt.store) == 1
    assert not list(crckpt.store.glob("tmp/*"))


@pytest.mark.skipif(bool(NO_TRACKER), reason=NO_TRACKER)
@pytest.mark.parametrize("words", [("pre-dump",), ("dump", "--incremental")])
def test_pid_reused_while_tracked_is_refused(
    crckpt: Crckpt, sleeper: Sleeper, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The PID is reused when CRIU is about to freeze the tree."""
    asked, waits, goes = (tmp_path / name for name in ("asked", "waits", "goes"))
    until = f"[ ! -e {waits} ] || {{ touch {asked}; until [ -e {goes} ]; do sleep 0.02; done; }}"
    criu = str(wrapper(tmp_path, f'case "$1" in dump|pre-dump) {until};; esac'))
    crckpt.run("dump", str(sleeper.pid), "job", "--incremental", "--criu", criu)
    waits.touch()
    command, *more = words
    dump = crckpt.start(command, str(sleeper.pid), "job", "--criu", criu, *more)
    wait_for(asked.exists, ENDS_WITHIN_S, "CRIU to start")
    sleeper.replace()
    goes.touch()
    out, error = dump.communicate(timeout=2 * ENDS_WITHIN_S)
    assert dump.returncode == 14, out + error
    assert f"PID {sleeper.pid} ended, and another process (sleep) now has its PID" in error
    is_untouched(sleeper.pid)
    assert manifests(crckpt.store) == 1


def test_process_keeps_its_pid_until_reaped(sleeper: Sleeper) -> None:
    held = HeldProcess(sleeper.pid)
    assert_has_number(held)
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert_has_number(held)
    sleeper.replace()
    assert_has_number(held, has=False)
    again = HeldProcess(sleeper.pid)
    assert_has_number(again)
    held.close()
    again.close()
    assert_has_number(held, has=False)


def assert_has_number(held: HeldProcess, *, has: bool = True) -> None:
    assert held.keeps_pid == has


def test_wait_until_gone_does_not_wait_for_a_new_process_with_a_reused_pid(sleeper: Sleeper) -> None:
    now = proc.identify(sleeper.pid)
    assert now is not None
    assert proc.wait_until_gone([now], 0) == (sleeper.pid,)
    assert proc.wait_until_gone([replace(now, start=now.start - 1)], 0) == ()
