"""Only what was started since is ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from crckpt.host import leftovers, proc


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child of ours."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_now_is_a_start_time() -> None:
    before = leftovers.now()
    with subprocess.Popen(["sleep", "60"]) as process:
        found = proc.read_process(process.pid)
        process.kill()
    assert found is not None
    assert before <= found.start <= leftovers.now()


def test_what_was_started_since_is_ended_and_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    process = proc.read_process(sleeper.pid)
    assert process is not None
    leftovers.end([sleeper.pid], process.start)
    assert proc.read_process(sleeper.pid) is None


def test_what_is_not_our_child_is_ended_too() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        leftovers.end([pid], 0)
        assert shell.wait() == 0
    assert proc.read_process(pid) is None


def test_what_was_there_before_stays(sleeper: subprocess.Popen[bytes]) -> None:
    process = proc.read_process(sleeper.pid)
    assert process is not None
    leftovers.end([sleeper.pid], process.start + 1)
    os.kill(sleeper.pid, signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGTERM


def test_what_has_gone_is_passed_over(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    leftovers.end([sleeper.pid], 0)
