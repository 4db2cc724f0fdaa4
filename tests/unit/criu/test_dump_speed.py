"""The trial's tree: it is there to be dumped, has more in its child, and ends with the block."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from criu_scripts import script
from own_process import children, descriptors

from crckpt.criu.dump_speed import running_trial_tree
from crckpt.errors import HostCannot
from crckpt.host import proc


def test_child_of_the_trial_tree_has_more_of_everything_than_the_root_and_both_end(tmp_path: Path) -> None:
    before = children(), descriptors()
    with running_trial_tree(tmp_path / "criu", tmp_path) as tree:
        root, child = proc.read_process(tree.root), proc.read_process(tree.child)
        assert root is not None
        assert child is not None
        assert (root.ppid, child.ppid) == (os.getpid(), root.pid)
        assert (len(root.threads), len(child.threads)) == (1, 9)
        assert len(proc.descriptors(child.pid)) > 100 > len(proc.descriptors(root.pid))
    assert proc.wait_until_gone([tree.root, tree.child], 20) == ()
    assert (children(), descriptors()) == before


def test_failed_trial_dump_is_explained(tmp_path: Path) -> None:
    failing = script(
        tmp_path / "criu", 'echo "Error (criu/sk-inet.c:137): inet: Unsupported proto 6 for socket 1"; exit 1'
    )
    with (
        running_trial_tree(failing, tmp_path) as tree,
        pytest.raises(HostCannot, match="a trial dump fails: a socket uses IP protocol 6"),
    ):
        tree.dump("first")
