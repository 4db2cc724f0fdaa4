"""A restore in which CRIU hangs ends with an error, and leaves no process that waits or spins."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from contextlib import suppress

import psutil
import pytest
from command import PROGRAM, Crckpt
from stopped_trees import BY_NAME, JOB, ObstructedCriu, foreground, program, staging, stopped
from trees import Tree

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED = 23
QUIET_S = 2
WITHIN_S = QUIET_S + 33


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 2 s, so that the tests need not wait for the usual 30 s."""
    monkeypatch.setenv("CRCKPT_QUIET_S", str(QUIET_S))


def nothing_is_left(crckpt: Crckpt, tree: Tree) -> None:
    tree.wait_gone()
    assert staging(crckpt) == ()
    left = [process for process in psutil.process_iter(["cmdline"]) if _is_of(process, str(crckpt.store.parent))]
    assert not left


def _is_of(process: psutil.Process, directory: str) -> bool:
    return any(word.startswith(directory) for word in process.info["cmdline"] or ())


def test_restore_fails_if_the_root_process_is_killed_after_the_commit(
    crckpt: Crckpt, obstructed: ObstructedCriu
) -> None:
    """CRIU alone would wait for the root forever."""
    with stopped(crckpt, program("family")) as tree:
        before = tree.counters()
        words = ("--detach", "--criu", str(obstructed.path))
        with obstructed.waits(committed=True) as obstacle, foreground(crckpt, *words) as front:
            obstacle.wait_reached()
            os.kill(tree.pid, signal.SIGKILL)
            obstacle.let_go()
            _, error = front.communicate(timeout=WITHIN_S)
        assert front.returncode == FAILED, error
        assert "the restore failed: " in error
        assert "; nothing is left behind" in error
        nothing_is_left(crckpt, tree)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.parametrize(
    "capability", ["setpcap", "sys_ptrace", "net_admin", "checkpoint_restore", "sys_resource", "sys_admin"]
)
def test_restore_without_a_capability_names_it(crckpt: Crckpt, capability: str) -> None:
    """The capability is named. If threads fail silently, only the log has the cause."""
    with stopped(crckpt, BY_NAME["threads"]) as tree:
        before = tree.counters()
        without = ("setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}")
        result = subprocess.run(
            [*without, str(PROGRAM), "restore", JOB, "--detach"],
            env=crckpt.environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        if result.returncode == 0:  # not all programs need CAP_SYS_RESOURCE
            assert capability == "sys_resource"
            tree.wait_growth(before)
            return
        assert result.returncode == FAILED, result.stderr
        assert re.search(f"crckpt runs without .*CAP_{capability.upper()}\\b", result.stderr), result.stderr
        assert "nothing is left behind" in result.stderr
        nothing_is_left(crckpt, tree)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.parametrize("member", range(1, 5))
def test_restore_fails_if_a_task_is_killed_as_soon_as_it_exists(crckpt: Crckpt, member: int) -> None:
    """The other tasks wait for the killed one in CRIU's restorer, where they may spin."""
    with stopped(crckpt, program("family")) as tree:
        pid, before = tree.all[member], tree.counters()
        is_over, killed = threading.Event(), list[int]()

        def kill() -> None:
            while not is_over.is_set() and not killed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            done = crckpt.start("restore", JOB, "--detach")
            _, error = done.communicate(timeout=WITHIN_S)
        finally:
            is_over.set()
            killer.join()
        assert killed
        assert done.returncode == FAILED, error
        assert "nothing is left behind" in error
        nothing_is_left(crckpt, tree)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_restore_by_a_criu_that_only_uses_cpu_time_is_ended(crckpt: Crckpt, obstructed: ObstructedCriu) -> None:
    with stopped(crckpt, BY_NAME["tcp-pair"], "--tcp", "keep") as tree:
        before = tree.counters()
        with obstructed.spins(), foreground(crckpt, "--criu", str(obstructed.path)) as front:
            _, error = front.communicate(timeout=WITHIN_S)
        assert front.returncode == FAILED, error
        assert f"CRIU made no progress for {QUIET_S} s, and crckpt ended it; nothing is left behind" in error
        nothing_is_left(crckpt, tree)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
