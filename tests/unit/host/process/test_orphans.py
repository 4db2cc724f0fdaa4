"""Only descendants of this process are ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from crckpt.host import proc
from crckpt.host.process import orphans

SHELL_WITH_A_CHILD = "sleep 60 & echo $!; wait"


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[str]]:
    """A child of ours, with a child of its own."""
    words = ["sh", "-c", SHELL_WITH_A_CHILD]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture
def grandchild(shell: subprocess.Popen[str]) -> int:
    """The PID of the shell's child."""
    assert shell.stdout is not None
    return int(shell.stdout.readline())


def failed(*pids: int) -> None:
    with pytest.raises(ValueError, match="x"), orphans.ended_on_failure(pids):
        raise ValueError("x")


def test_failed_restore_ends_and_reaps_our_descendants(shell: subprocess.Popen[str], grandchild: int) -> None:
    failed(grandchild, shell.pid)
    assert [proc.read_process(pid) for pid in (shell.pid, grandchild)] == [None, None]


def test_failed_restore_reaps_a_child_that_has_ended(shell: subprocess.Popen[str], grandchild: int) -> None:
    """A CRIU that failed has not reaped the child, so the PID of the child would stay in use."""
    with suppress(ValueError), orphans.ended_on_failure((shell.pid, grandchild)):
        shell.kill()
        raise ValueError
    assert [proc.read_process(pid) for pid in (shell.pid, grandchild)] == [None, None]


def test_failed_restore_does_not_end_a_process_of_another_parent(shell: subprocess.Popen[str], grandchild: int) -> None:
    """A process may have got its PID only after crckpt saw that the PID was free."""
    failed(grandchild)
    found = proc.read_process(grandchild)
    assert found is not None
    assert found.ppid == shell.pid
    assert found.state != "zombie"


def test_processes_are_ended_only_if_the_restore_fails(shell: subprocess.Popen[str], grandchild: int) -> None:
    with orphans.ended_on_failure((shell.pid, grandchild)):
        pass
    assert shell.poll() is None


def test_failed_restore_skips_a_process_that_has_ended(shell: subprocess.Popen[str]) -> None:
    shell.kill()
    shell.wait()
    failed(shell.pid)
