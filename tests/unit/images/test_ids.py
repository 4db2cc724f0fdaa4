"""ids-PID.img: what processes share."""

from __future__ import annotations

from crckpt.images.tree import ImageTree


def test_recorded_tree_is_in_the_namespaces_of_its_criu(tree: ImageTree) -> None:
    assert tree.root.ids is not None
    assert tree.root.ids.namespaces == tree.inventory.root_ids.namespaces
    assert 0 not in (tree.root.ids.namespaces.net, tree.root.ids.namespaces.time)
