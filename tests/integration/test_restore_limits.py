"""A restore in which CRIU hangs ends with an error, and nothing is left of it that waits or spins."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest
from command import PROGRAM, Crckpt
from stopped import BY_NAME, JOB, ObstructedCriu, foreground, program, staging, stopped
from trees import Tree

from crckpt.host.progress import QUIET_S

pytestmark = pytest.mark.usefixtures("adopted")

FAILED = 23
WITHIN_S = QUIET_S + 30


def nothing_is_left(crckpt: Crckpt, tree: Tree) -> None:
    tree.wait_gone()
    assert staging(crckpt) == ()
    left = [process for process in psutil.process_iter(["cmdline"]) if _is_of(process, str(crckpt.store.parent))]
    assert not left


def _is_of(process: psutil.Process, directory: str) -> bool:
    return any(word.startswith(directory) for word in process.info["cmdline"] or ())


def test_a_root_that_is_killed_after_the_commit(crckpt: Crckpt, obstructed: ObstructedCriu) -> None:
    """CRIU waits for it without end."""
    with stopped(crckpt, program("family")) as tree:
        before = tree.counters()
        words = ("--detach", "--criu", str(obstructed.path))
        with obstructed.waits(committed=True) as obstacle, foreground(crckpt, *words) as front:
            obstacle.wait_reached()
            os.kill(tree.pid, signal.SIGKILL)
            obstacle.let_go()
            _, said = front.communicate(timeout=WITHIN_S)
        assert front.returncode == FAILED, said
        assert "the restore failed: " in said
        assert "; nothing is left behind" in said
        nothing_is_left(crckpt, tree)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.parametrize("capability", ["setpcap", "sys_ptrace"])
def test_a_capability_that_is_missing(crckpt: Crckpt, capability: str) -> None:
    """Threads fail where nobody hears of it. The log says why."""
    with stopped(crckpt, BY_NAME["threads"]) as tree:
        before = tree.counters()
        without = ("setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}")
        done = subprocess.run(
            [*without, str(PROGRAM), "restore", JOB, "--detach", "--no-preflight"],
            env=crckpt.environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == FAILED, done.stderr
        assert "nothing is left behind" in done.stderr
        nothing_is_left(crckpt, tree)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_what_spins_makes_no_progress(crckpt: Crckpt, obstructed: ObstructedCriu) -> None:
    with stopped(crckpt, BY_NAME["tcp-pair"], "--tcp", "keep") as tree:
        before = tree.counters()
        with obstructed.spins(), foreground(crckpt, "--criu", str(obstructed.path)) as front:
            _, said = front.communicate(timeout=WITHIN_S)
        assert front.returncode == FAILED, said
        assert f"CRIU made no progress for {QUIET_S:g} s, and crckpt ended it; nothing is left behind" in said
        nothing_is_left(crckpt, tree)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
