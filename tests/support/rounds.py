"""tests/programs/rounds.c, running: a target that reports the content of its memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from checkout import TESTS
from trees import wait_for

PROGRAM = TESTS / "programs/rounds.c"
PAGE = 4096
PAGES = 8192
FEW_PAGES = 128
"""Pages beside those of its area: 64 of a file's private map, 23 of its other areas, its stack, its libc's data."""


class Target:
    """tests/programs/rounds.c, running; restored under the same PID it is still this."""

    def __init__(self, program: Path, work: Path) -> None:
        self.work = work
        null = subprocess.DEVNULL
        argv = [str(program), str(work)]
        self._process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)
        self.pid = self._process.pid
        self.number = 0
        _, self.area, self.sparse = self.report()

    def report(self) -> tuple[str, int, int]:
        """The checksum after the last signal, and the addresses of the program's memory."""
        path = self.work / f"sum-{self.number}"
        wait_for(path.exists, 60, path.name)
        checksum, area, sparse = path.read_text().split()
        return checksum, int(area), int(sparse)

    def write(self) -> str:
        """Let the program write one page in a hundred."""
        return self.send_signal(signal.SIGUSR1)

    def look(self) -> str:
        """The checksum of the program's memory now."""
        return self.send_signal(signal.SIGUSR2)

    def send_signal(self, number: signal.Signals) -> str:
        """Send the program this signal, and wait for its report."""
        self.number += 1
        (self.work / f"sum-{self.number}").unlink(missing_ok=True)
        os.kill(self.pid, number)
        return self.report()[0]

    def start_afresh(self) -> None:
        """Let the program replace itself by exec."""
        (self.work / "sum-0").unlink()
        self.number = 0
        os.kill(self.pid, signal.SIGHUP)
        _, self.area, self.sparse = self.report()

    def written(self) -> set[int]:
        """The pages of the program's area that the last `write` wrote."""
        return set(range(self.number % 100, PAGES, 100))

    def end(self) -> None:
        """Kill the program and reap it."""
        os.kill(self.pid, signal.SIGKILL)
        if self._process.returncode is None:
            self._process.wait()
        else:
            os.waitpid(self.pid, 0)


def build_program(directory: Path) -> Path:
    """The program; skips if there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    made = directory / "rounds"
    subprocess.run(["gcc", "-O1", "-o", str(made), str(PROGRAM)], check=True)
    return made
