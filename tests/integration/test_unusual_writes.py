"""Memory that changes in unusual ways between dumps is restored as it was: tests/programs/tricks.c lists the ways."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command import Crckpt
from incremental import NO_TRACKER
from oracle import compile_program
from trees import READY_S, wait_for

pytestmark = [pytest.mark.skipif(bool(NO_TRACKER), reason=NO_TRACKER), pytest.mark.usefixtures("orphans_are_reaped")]


class UnusualWriter:
    """The running program, also after a restore with the same PID."""

    def __init__(self, program: Path, work: Path, left_out: str) -> None:
        self._work = work
        null = subprocess.DEVNULL
        # System V shared memory is saved with its namespace alone.
        words = ["unshare", "--ipc", str(program), str(work), left_out]
        self._process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)
        self.pid = self._process.pid
        self._number = 0

    def sums(self) -> dict[str, str]:
        """The checksum of each trick's memory, as the program said last; without what the host lacks."""
        path = self._work / f"sum-{self._number}"
        wait_for(path.exists, READY_S, path.name)
        pairs = (line.split() for line in path.read_text().splitlines())
        return {name: checksum for name, checksum in pairs if checksum != "-"}

    def step(self, number: signal.Signals = signal.SIGUSR1) -> dict[str, str]:
        """Let the program make the next step; with SIGUSR2 it only looks."""
        self._number += 1
        (self._work / f"sum-{self._number}").unlink(missing_ok=True)
        os.kill(self.pid, number)
        return self.sums()

    def restored(self, crckpt: Crckpt, checkpoint: str, number: int) -> dict[str, str]:
        """The program's memory after a restore; it had been sent this many signals before that dump."""
        self.end()
        crckpt.run("restore", checkpoint, "--detach")
        self._number = number
        return self.step(signal.SIGUSR2)

    def end(self) -> None:
        """Kill and reap the program and its children, so that the PIDs are free."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-self.pid, 0)
        self._process.returncode = -signal.SIGKILL


@pytest.fixture
def unusual_writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UnusualWriter]:
    """The program without the trick that the parameter names, if any."""
    (tmp_path / "work").mkdir()
    running = UnusualWriter(compile_program(tmp_path, "tricks"), tmp_path / "work", getattr(request, "param", ""))
    running.sums()
    yield running
    running.end()


def dumped(crckpt: Crckpt, tricks: UnusualWriter) -> dict[str, Any]:
    """The result of an incremental dump, which does not change the program."""
    before = tricks.step(signal.SIGUSR2)
    result: dict[str, Any] = crckpt.run("dump", str(tricks.pid), "job", "--incremental", "--json").document["result"]
    assert tricks.step(signal.SIGUSR2) == before, "it lives on"
    return result


def test_memory_changed_in_unusual_ways_is_restored(crckpt: Crckpt, unusual_writer: UnusualWriter) -> None:
    made, had = [], []
    for number in range(3):
        had.append(unusual_writer.step() if number else unusual_writer.sums())
        assert len(had[-1]) > 10, "the host must support at least ten kinds of writes"
        result = dumped(crckpt, unusual_writer)
        assert bool(result["tracked"]["base"]) == bool(number), result["tracked"]
        made.append(result["checkpoint"]["id"])
    for number in (2, 1):
        assert unusual_writer.restored(crckpt, made[number], 3 * number + 1) == had[number]


# A round does not copy unreadable memory. If the memory is readable later, the dump after the round is full.
@pytest.mark.parametrize("unusual_writer", ["shut"], indirect=True)
def test_memory_changed_in_unusual_ways_between_rounds_is_restored(
    crckpt: Crckpt, unusual_writer: UnusualWriter
) -> None:
    first = dumped(crckpt, unusual_writer)
    unusual_writer.step()
    crckpt.run("pre-dump", str(unusual_writer.pid), "job")
    had = unusual_writer.step()
    result = dumped(crckpt, unusual_writer)
    assert (result["tracked"]["base"], result["tracked"]["rounds"]) == (first["checkpoint"]["id"], 1)
    assert unusual_writer.restored(crckpt, result["checkpoint"]["id"], 5) == had
