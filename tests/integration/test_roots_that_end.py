"""A program is checked again before it is reported as running: roots with a parent-death signal, and ended roots."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from command import Crckpt
from dump_moments import ENDS_WITHIN_S
from incremental import executable
from stopped_trees import JOB, detached_in_namespace
from trees import runs, wait_for

from crckpt.criu.find import find

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED = 23


@pytest.fixture
def mortal_program() -> Iterator[subprocess.Popen[bytes]]:
    """A program that dies with its parent."""
    null = subprocess.DEVNULL
    words = ("setpriv", "--pdeathsig", "KILL", "/bin/sleep", "1000")
    process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)
    wait_for(lambda: psutil.Process(process.pid).name() == "sleep", ENDS_WITHIN_S, "the program")
    yield process
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
    process.poll()


def stop(crckpt: Crckpt, process: subprocess.Popen[bytes]) -> None:
    crckpt.run("dump", str(process.pid), JOB, "--stop")
    process.wait(ENDS_WITHIN_S)


def test_root_with_parent_death_signal_survives_detach(crckpt: Crckpt, mortal_program: subprocess.Popen[bytes]) -> None:
    """The root's parents, first CRIU and then crckpt, have ended. The root still runs."""
    stop(crckpt, mortal_program)
    result = crckpt.run("restore", JOB, "--detach")
    assert (
        f"process {mortal_program.pid} no longer gets signal 9 when its parent ends (PR_SET_PDEATHSIG)"
        in result.out + result.err
    )
    assert runs(mortal_program.pid)
    crckpt.run("dump", str(mortal_program.pid), JOB)
    assert runs(mortal_program.pid)


def test_root_with_parent_death_signal_is_restored_into_a_pid_namespace(
    crckpt: Crckpt, mortal_program: subprocess.Popen[bytes]
) -> None:
    stop(crckpt, mortal_program)
    with detached_in_namespace(crckpt) as init:
        assert [child.name() for child in psutil.Process(init).children()] == ["sleep"]
    crckpt.run("rehearse", JOB)


def test_root_with_parent_death_signal_ends_with_crckpt_in_the_foreground(
    crckpt: Crckpt, mortal_program: subprocess.Popen[bytes]
) -> None:
    """crckpt is the parent of a program in the foreground."""
    stop(crckpt, mortal_program)
    front = crckpt.start("restore", JOB)
    assert front.stderr is not None
    assert "restored" in front.stderr.readline()
    # This is printed before the program runs. CRIU sets PR_SET_PDEATHSIG last: a parent that has ended sends nothing.
    children = psutil.Process(front.pid).children
    wait_for(lambda: [child.pid for child in children()] == [mortal_program.pid], ENDS_WITHIN_S, "CRIU to end")
    front.kill()
    front.communicate()
    wait_for(lambda: not runs(mortal_program.pid), ENDS_WITHIN_S, "the program to die")


def killing(directory: Path, command: str, pid: int) -> Path:
    """A CRIU after whose success the process is killed."""
    marker = directory / "there"
    criu = executable(
        directory / "criu",
        f'{find(None, None).path} "$@"; status=$?\n'
        f'if [ -e {marker} ] && [ "$1" = {command} ]; then\n'
        f"kill -KILL {pid}\n"
        # The signal is sent before it has ended the process.
        f"while grep -qs '^State:[^Z]*$' /proc/{pid}/status; do :; done\n"
        "fi\n"
        "exit $status",
    )
    crckpt = Crckpt(directory / "none")
    crckpt.run("doctor", "--criu", str(criu))
    marker.touch()
    return criu


def test_root_that_ends_at_once_is_a_failed_restore(
    crckpt: Crckpt, mortal_program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    stop(crckpt, mortal_program)
    criu = killing(tmp_path, "restore", mortal_program.pid)
    result = crckpt.run("restore", JOB, "--detach", "--criu", str(criu), status=FAILED)
    assert f"the root of the restored tree, PID {mortal_program.pid}, ended at once by signal 9" in result.err
    assert "nothing is left behind" in result.err
    wait_for(lambda: not Path(f"/proc/{mortal_program.pid}").exists(), ENDS_WITHIN_S, "the program to be gone")
    crckpt.run("restore", JOB, "--detach")
    assert runs(mortal_program.pid)


def test_root_that_ended_after_its_dump_is_not_reported_running(
    crckpt: Crckpt, mortal_program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    criu = killing(tmp_path, "dump", mortal_program.pid)
    result = crckpt.run("dump", str(mortal_program.pid), JOB, "--criu", str(criu))
    assert f"the tree's root, PID {mortal_program.pid}, has ended since; bring it back with" in result.out
    mortal_program.wait(ENDS_WITHIN_S)
    crckpt.run("restore", JOB, "--detach")
    assert runs(mortal_program.pid)
