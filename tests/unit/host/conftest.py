"""Fixtures of tests of the host."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_programs import WAIT_STATEMENTS, program

from crckpt.host.process import run


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, the only one where crckpt searches for commands."""
    path = tmp_path / "commands"
    path.mkdir()
    # crckpt does not pass its own environment on: a PATH of ours would change nothing.
    monkeypatch.setitem(run.ENVIRONMENT, "PATH", str(path))
    return path


@pytest.fixture
def waiting_program() -> Iterator[subprocess.Popen[bytes]]:
    """A program that does nothing."""
    with program(WAIT_STATEMENTS) as process:
        yield process


@pytest.fixture
def zombie() -> Iterator[int]:
    """The PID of a process that has ended and is not reaped yet."""
    process = subprocess.Popen(["/bin/true"], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()
