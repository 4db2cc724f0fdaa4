"""Small programs of a test's own, and what crckpt reads of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from crckpt.host import proc

WAIT_STATEMENTS = "print('ready', flush=True); sys.stdin.read()"


@contextmanager
def program(code: str, *inherited: int) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program in a session of its own, which has said that it is ready; ended and reaped afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import os, sys\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        pass_fds=inherited,
    )
    try:
        assert read_line(process), "the program ended before it was ready"
        yield process
    finally:
        process.kill()
        process.communicate()


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line of the program's output."""
    assert process.stdout is not None
    return process.stdout.readline()


def read(pid: int) -> proc.Process:
    found = proc.read_process(pid)
    assert found is not None
    return found


def free_pid() -> int:
    """A PID that a process of ours had a moment ago."""
    process = subprocess.Popen(["/bin/true"], stdin=subprocess.DEVNULL)
    process.wait()
    return process.pid
