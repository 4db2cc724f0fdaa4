"""pstree.img: the processes of a tree."""

from __future__ import annotations

import os

from image_trees import child

from crckpt.images import core
from crckpt.images.processes import read_pstree
from crckpt.images.tree import ImageTree


def test_entry_of_a_zombie_has_only_its_exit_status(tree: ImageTree, images: dict[str, bytes]) -> None:
    zombie = child(tree, core.ZOMBIE)
    assert os.waitstatus_to_exitcode(zombie.core.exit_code) == 3
    assert [thread.tid for thread in zombie.threads] == [zombie.pid]
    assert (zombie.descriptors, zombie.memory, zombie.exe, zombie.ids) == ((), None, None, None)
    (entry,) = (entry for entry in read_pstree(images["pstree.img"]) if entry.pid == zombie.pid)
    assert entry.threads != (zombie.pid,), "CRIU began to write a zombie's thread: the docstrings say otherwise"
