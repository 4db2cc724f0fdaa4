"""Two restores of one job at the same time: the second waits for the first, or reports it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from remote import Remote, remote
from stopped_trees import JOB, ObstructedCriu, foreground, staging
from trees import wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

LOCKED: Final = 11
REFUSED: Final = 24
WITHIN_S: Final = 60


@pytest.fixture
def ended_program(crckpt: Crckpt) -> Iterator[Remote]:
    """A program with two checkpoints, ended."""
    with remote() as program:
        program.ask("n = 1")
        crckpt.run("dump", str(program.pid), JOB)
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        yield program


@pytest.mark.parametrize("ref", [JOB, f"{JOB}~1"], ids=["same", "older"])
def test_second_restore_waits_for_the_first_and_reports_that_the_tree_runs(
    crckpt: Crckpt, ended_program: Remote, obstructed: ObstructedCriu, ref: str
) -> None:
    """The second restore changes nothing until then, and the first tree keeps running."""
    with obstructed.waits(committed=False) as obstacle:
        first = crckpt.start("restore", JOB, "--detach", "--criu", str(obstructed.path))
        obstacle.wait_reached()
        second = crckpt.start("restore", ref, "--detach")
        wait_for(lambda: _waits_for_a_lock(second) or second.poll() is not None, WITHIN_S, "it to wait")
        assert len(staging(crckpt)) == 1, "the second has begun"
        obstacle.let_go()
        _, error = first.communicate(timeout=WITHIN_S)
        assert first.returncode == 0, error
        _, error = second.communicate(timeout=WITHIN_S)
    assert second.returncode == REFUSED
    assert f"{JOB} is already running, as PID {ended_program.pid}" in error
    assert ended_program.ask("answer = n") == 1
    assert not list((crckpt.store / "locks").iterdir())


def test_second_restore_succeeds_when_the_first_fails(
    crckpt: Crckpt, ended_program: Remote, obstructed: ObstructedCriu
) -> None:
    with obstructed.waits(committed=False) as obstacle:
        first = crckpt.start("restore", JOB, "--detach", "--criu", str(obstructed.path))
        obstacle.wait_reached()
        second = crckpt.start("restore", JOB, "--detach")
        wait_for(lambda: _waits_for_a_lock(second) or second.poll() is not None, WITHIN_S, "it to wait")
        first.terminate()
        obstacle.let_go()
        _, error = first.communicate(timeout=WITHIN_S)
        assert "nothing is left behind" in error
        _, error = second.communicate(timeout=WITHIN_S)
    assert second.returncode == 0, error
    assert ended_program.ask("answer = n") == 1


def test_restore_that_waited_too_long_names_the_other(
    crckpt: Crckpt, ended_program: Remote, obstructed: ObstructedCriu
) -> None:
    """The message has the PID of the other restore. In the foreground, a running program blocks nobody."""
    with obstructed.waits(committed=False) as obstacle, foreground(crckpt, "--criu", str(obstructed.path)) as first:
        obstacle.wait_reached()
        result = crckpt.run("restore", JOB, "--detach", status=LOCKED, CRCKPT_LOCK_S="1")
        assert f"another restore of {JOB} is in progress: PID {first.pid} (" in result.err
        obstacle.let_go()
        assert ended_program.ask("answer = n") == 1
        result = crckpt.run("restore", JOB, "--detach", status=REFUSED)
        assert f"{JOB} is already running, as PID {ended_program.pid}" in result.err


def _waits_for_a_lock(process: subprocess.Popen[str]) -> bool:
    """Return whether the process has opened the lock of the job."""
    try:
        return any(name.readlink().name == f"restore-{JOB}" for name in Path(f"/proc/{process.pid}/fd").iterdir())
    except FileNotFoundError:
        return False
