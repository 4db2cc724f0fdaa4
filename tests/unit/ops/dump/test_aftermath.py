"""The reported state of a tree after a failed dump."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crckpt.errors import DumpFailed, TargetNotRunning, TreeStopped
from crckpt.host import proc
from crckpt.ops.context import Context
from crckpt.ops.dump.aftermath import BaseMismatch, tree_state_reported
from crckpt.store import Repository


@pytest.fixture
def tree() -> Iterator[proc.Tree]:
    """A process that runs."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        root = proc.read_process(process.pid)
        assert root is not None
        yield proc.read_tree(root)
        process.kill()


def test_error_after_a_lost_disk_still_says_that_the_tree_runs_on(tree: proc.Tree, tmp_path: Path) -> None:
    """Neither CRIU's log nor the checkpoints can be read any more."""
    repository = Repository.open(tmp_path / "store", create=True)
    (tmp_path / "store/checkpoints").rmdir()
    with (
        pytest.raises(DumpFailed, match=r"crckpt cannot read whether a checkpoint was made; the tree keeps running$"),
        tree_state_reported(tree, tmp_path, repository, Context(tmp_path)),
    ):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_error_says_that_the_tree_ended_during_the_dump(tree: proc.Tree, tmp_path: Path) -> None:
    os.kill(tree.root.pid, 9)
    os.waitid(os.P_PID, tree.root.pid, os.WEXITED | os.WNOWAIT)
    repository = Repository.open(tmp_path / "store", create=True)
    with (
        pytest.raises(TreeStopped, match="have ended"),
        tree_state_reported(tree, tmp_path / "none", repository, Context(tmp_path)),
    ):
        raise DumpFailed("the dump failed")


def test_error_about_a_base_that_does_not_fit_says_whether_the_tree_runs(tree: proc.Tree, tmp_path: Path) -> None:
    repository = Repository.open(tmp_path / "store", create=True)
    with (
        pytest.raises(BaseMismatch, match=r"^the dump failed; no checkpoint was made; the tree keeps running$"),
        tree_state_reported(tree, tmp_path / "none", repository, Context(tmp_path)),
    ):
        raise BaseMismatch("the dump failed")


def test_tree_that_ended_before_the_freeze_has_its_own_exit_code(tree: proc.Tree, tmp_path: Path) -> None:
    os.kill(tree.root.pid, 9)
    os.waitid(os.P_PID, tree.root.pid, os.WEXITED | os.WNOWAIT)
    repository = Repository.open(tmp_path / "store", create=True)
    with (
        pytest.raises(TargetNotRunning, match=r"^PID 7 ended before the freeze; no checkpoint was made$"),
        tree_state_reported(tree, tmp_path / "none", repository, Context(tmp_path)),
    ):
        raise TargetNotRunning("PID 7 ended before the freeze")
