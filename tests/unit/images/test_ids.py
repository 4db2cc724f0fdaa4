"""ids-PID.img: what processes share."""

from __future__ import annotations

from crckpt.images.tree import ImageTree


def test_namespaces_of_the_root_are_those_that_criu_recorded_as_its_own(tree: ImageTree) -> None:
    assert tree.root.ids is not None
    assert tree.root.ids.namespaces == tree.inventory.root_ids.namespaces
    assert 0 not in (tree.root.ids.namespaces.net, tree.root.ids.namespaces.time)
