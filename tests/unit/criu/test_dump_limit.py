"""A CRIU that makes no progress is ended; one that does is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from small_programs import WAIT_STATEMENTS, program
from trees import wait_for

from crckpt.criu import engine
from crckpt.criu.engine import DumpLimit
from crckpt.criu.hold import PATIENCE_S
from crckpt.host import proc
from crckpt.host.proc.status import read_stat

FAMILY = f"pid = os.fork()\nif pid == 0: sys.stdin.read(); os._exit(0)\n{WAIT_STATEMENTS}"


@pytest.fixture
def criu() -> Iterator[subprocess.Popen[bytes]]:
    """A program with a child: both wait without end."""
    with program(FAMILY) as process:
        children = proc.children(process.pid)
        yield process
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@pytest.fixture
def root() -> Iterator[int]:
    with program(WAIT_STATEMENTS) as process:
        yield process.pid


def test_hung_criu_is_killed_with_its_descendants(criu: subprocess.Popen[bytes], root: int, tmp_path: Path) -> None:
    (child,) = proc.children(criu.pid)
    limit = DumpLimit(criu.pid, root, tmp_path / "log")
    for _ in range(PATIENCE_S + 1):
        limit.look(is_to_end=True)
    assert (limit.is_killed, criu.poll()) == (False, None)
    limit.look(is_to_end=True)
    assert (limit.is_killed, limit.is_lost, limit.waited_for) == (True, False, ())
    assert criu.wait(60) == -signal.SIGKILL
    assert proc.wait_until_gone([child], 20) == ()
    assert proc.read_process(root) is not None, "the tree keeps running"


def test_criu_with_a_growing_log_is_left_alone(criu: subprocess.Popen[bytes], root: int, tmp_path: Path) -> None:
    limit = DumpLimit(criu.pid, root, tmp_path / "log")
    with (tmp_path / "log").open("w") as log:
        for number in range(3 * PATIENCE_S):
            print(number, file=log, flush=True)
            limit.look(is_to_end=True)
    assert not limit.is_killed
    assert criu.poll() is None


def test_criu_that_works_much_longer_than_its_dump_should_take_is_killed(
    root: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of CRIU can grow with the square of what a program has, while CRIU's log grows all the time."""
    monkeypatch.setattr(engine, "BUSY_S", 5)
    monkeypatch.setattr(engine, "_LEAST_SPEED", 1 << 30)
    with program("print(flush=True)\nwhile True: pass") as criu, (tmp_path / "log").open("w") as log:
        limit = DumpLimit(criu.pid, root, tmp_path / "log")
        for number in range(100):
            print(number, file=log, flush=True)
            limit.look(is_to_end=False)
            if limit.is_killed:
                break
            _work_a_moment(criu.pid)
        assert 5 <= number <= 7
        assert limit.is_late
        assert criu.wait(60) == -signal.SIGKILL
    assert proc.read_process(root) is not None, "the tree keeps running"


def _work_a_moment(pid: int) -> None:
    before = read_stat(pid).cpu_ticks
    wait_for(lambda: read_stat(pid).cpu_ticks > before, 20, "the program to work")
