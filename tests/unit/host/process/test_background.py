"""The parent waits until the child has reported that the first part is done. Each case is a forking program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

PRELUDE = """
import os, signal, sys, time
from crckpt.host.process.signals import continue_in_background
from crckpt.host.process.signals import handle_interrupts
handle_interrupts()
print("first", flush=True)
"""
# After a failed test, the child ends by itself, and so do the processes that wait for it.
FORK_STATEMENTS = """
detach = continue_in_background()
signal.alarm(120)
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program that forks between `before` and `code`; kill it at the end if it is still there."""
    processes: list[subprocess.Popen[str]] = []

    def start_one(code: str, before: str = "", output: int | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + before + FORK_STATEMENTS + code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=() if output is None else (output,),
            text=True,
            cwd="/usr",
        )
        processes.append(process)
        return process

    yield start_one
    for process in processes:
        process.kill()
        process.communicate()


def test_background_child_continues_in_its_own_session(start: Start) -> None:
    reading, writing = os.pipe()
    code = f"""
print("before", flush=True)
detach()
print("after", flush=True)
with open({writing}, "w") as file:
    print(os.getpid(), os.getsid(0), os.getcwd(), *(os.readlink(f"/proc/self/fd/{{n}}") for n in range(3)), file=file)
"""
    process = start(code, output=writing)
    os.close(writing)
    with os.fdopen(reading) as file:
        pid, session, *rest = file.read().split()  # until the child has ended
    assert pid == session != str(process.pid)
    assert rest == ["/", *["/dev/null"] * 3]
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "first\nbefore\n", "")


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL)]
)
def test_background_child_that_ends_early_gives_its_status(start: Start, end: str, status: int) -> None:
    process = start(end)
    process.communicate()
    assert process.returncode == status


# Not `signal.pause`: the interruption may come just before it.
WAIT_STATEMENTS = """
print("waits", flush=True)
while True:
    time.sleep(0.05)
"""
ERROR_PRINTER = """
def say(_kind, error, _traceback):
    print(error, flush=True)
    os._exit(9)

sys.excepthook = say
"""


def test_interruption_of_crckpt_reaches_its_background_child(start: Start) -> None:
    process = start(WAIT_STATEMENTS, ERROR_PRINTER)
    assert process.stdout is not None
    assert (process.stdout.readline(), process.stdout.readline()) == ("first\n", "waits\n")
    process.terminate()
    out, err = process.communicate()
    assert (process.returncode, out, err) == (9, "interrupted by SIGINT\n", "")


def test_interruption_outside_the_wait_for_the_background_child_reaches_it(start: Start) -> None:
    """The interruption comes just before the parent waits, or to another thread."""
    other_thread = """
import threading
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
"""
    process = start(WAIT_STATEMENTS, ERROR_PRINTER + other_thread)
    assert process.stdout is not None
    assert (process.stdout.readline(), process.stdout.readline()) == ("first\n", "waits\n")
    process.terminate()
    out, _ = process.communicate()
    assert (process.returncode, out) == (9, "interrupted by SIGINT\n")


def test_interruption_just_after_the_fork_reaches_the_background_child(start: Start) -> None:
    # Called from C: its handler runs once `fork` has returned.
    interrupts = """
import ctypes, functools
os.register_at_fork(after_in_parent=functools.partial(ctypes.CDLL(None)["raise"], signal.SIGTERM))
"""
    process = start(WAIT_STATEMENTS, ERROR_PRINTER + interrupts)
    out, err = process.communicate()
    # The child may have come to its loop by then.
    assert (process.returncode, out.replace("waits\n", ""), err) == (9, "first\ninterrupted by SIGINT\n", "")
