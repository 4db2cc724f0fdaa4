"""Tests leave no PID namespace behind, even if the process that made it has ended before."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from provoked.criu import Target
from trees import PYTHON, Case, runs, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

IN_A_PID_NAMESPACE = ("unshare", "--pid", "--fork", "setsid")
WITHIN_S = 60


def _kill_parent(init: int) -> None:
    parent = psutil.Process(init).ppid()
    os.kill(parent, signal.SIGKILL)
    wait_for(lambda: not runs(parent), WITHIN_S, "the parent to end")
    assert runs(init)


def test_init_of_a_test_trees_pid_namespace_ends_with_its_parent() -> None:
    with started(Case("apart", (*IN_A_PID_NAMESPACE, PYTHON, "{programs}/counter.py", "{workdir}"))) as tree:
        (init,) = psutil.Process(tree.pid).children()
        _kill_parent(init.pid)
    assert not runs(init.pid)


def test_init_of_a_test_targets_pid_namespace_ends_with_its_parent(tmp_path: Path) -> None:
    with Target("nothing", tmp_path, IN_A_PID_NAMESPACE, depth=1) as target:
        _kill_parent(target.pid)
    assert not runs(target.pid)
