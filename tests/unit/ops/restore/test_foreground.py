"""crckpt stays the parent of a program in the foreground, and ends as that does."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import cast

import pytest
from dump_targets import CRIU
from own_process import children

from crckpt.host.process.job_control import Job
from crckpt.ops.restore.attempt import RestoreResult
from crckpt.ops.restore.foreground import ProgramEnd, wait_for_program
from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.store import Checkpoint

VERDICT = RestoreVerdict((), (), (), needs_terminal=False)


def of_child(pid: int) -> RestoreResult:
    return RestoreResult(cast(Checkpoint, None), VERDICT, (), CRIU, pid=pid, job=Job(pid, pid, None))


@pytest.mark.parametrize(
    ("command", "end"),
    [
        ("exit 0", ProgramEnd(0, 0)),
        ("exit 7", ProgramEnd(7, 0)),
        ("kill -TERM $$", ProgramEnd(128 + signal.SIGTERM, signal.SIGTERM)),
    ],
)
def test_exit_status_is_that_of_the_program(command: str, end: ProgramEnd) -> None:
    process = subprocess.Popen(["/bin/sh", "-c", command])
    found = wait_for_program(of_child(process.pid))
    process.returncode = found.status  # it is reaped
    assert found == end


def test_children_adopted_by_a_foreground_restore_are_reaped(tmp_path: Path) -> None:
    before = children()
    process = subprocess.Popen(["/bin/sleep", "0.2"])
    other = subprocess.Popen(["/bin/true"])
    assert wait_for_program(of_child(process.pid)).status == 0
    process.returncode = other.returncode = 0
    assert children() == before
