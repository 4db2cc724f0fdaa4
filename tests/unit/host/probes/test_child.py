"""A probe runs in a child: what breaks there, hangs or is interrupted is a fact by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from own_process import children, descriptors
from trees import READY_S, runs, wait_for

from crckpt.host.probes.trial import Fact, fork, ok, probe_in_child, wait_for_status


def fails() -> Fact:
    raise RuntimeError("on purpose")


def dies() -> Fact:
    os.kill(os.getpid(), signal.SIGKILL)
    return ok("not reached")


def hangs() -> Fact:
    fork(hang)
    hang()
    return ok("not reached")


def hang() -> int:
    signal.pause()
    return 0


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (fails, "the trial failed: RuntimeError: on purpose"),
        (dies, "ended with signal 9"),
        (hangs, "no answer after 1 s"),
    ],
)
def test_probe_that_fails_or_hangs_gives_only_its_own_result(trial: Callable[[], Fact], message: str) -> None:
    before = children(), descriptors()
    outcome = probe_in_child(trial, within=1)
    assert (outcome.state, message in outcome.found) == ("limited", True), outcome
    assert (children(), descriptors()) == before


INTERRUPTED_PROGRAM = """
import os, signal, threading
from pathlib import Path
from crckpt.errors import Interrupted
from crckpt.host.probes.trial import probe_in_child
from crckpt.host.process.signals import handle_interrupts

def interrupts():
    os.kill(os.getppid(), signal.SIGTERM)
    os.fork()
    signal.pause()

def left():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(), len(os.listdir("/proc/self/fd"))

# The signal may come to this one: then it is heard wherever the main thread happens to be.
threading.Thread(target=signal.pause, daemon=True).start()
handle_interrupts()
before = left()
try:
    probe_in_child(interrupts)
except Interrupted as error:
    print(error, left() == before, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def test_interruption_ends_the_probe_and_its_child() -> None:
    result = subprocess.run([sys.executable, "-c", INTERRUPTED_PROGRAM], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("interrupted by SIGTERM True set()\n", "")


def test_processes_started_by_a_probe_end_with_it() -> None:
    def starts() -> Fact:
        return ok(str(fork(hang)))

    child = int(probe_in_child(starts).found)
    wait_for(lambda: not runs(child), READY_S, "it to end")


def test_child_that_raises_does_not_answer_for_its_parent() -> None:
    def raises() -> int:
        raise OSError

    assert wait_for_status(fork(raises)) == 255
    assert probe_in_child(lambda: ok(str(wait_for_status(fork(raises))))) == ok("255")
