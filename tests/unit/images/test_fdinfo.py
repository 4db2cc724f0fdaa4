"""fdinfo-ID.img: tables of descriptors."""

from __future__ import annotations

from crckpt.images.processes import read_descriptors
from crckpt.images.tree import ImageTree


def test_descriptors_are_read_in_order_and_with_close_on_exec(tree: ImageTree, images: dict[str, bytes]) -> None:
    assert tree.root.ids is not None
    table = read_descriptors(images[f"fdinfo-{tree.root.ids.files}.img"])
    assert [entry.fd for entry in table] == sorted(entry.fd for entry in table)
    assert [entry.close_on_exec for entry in tree.root.descriptors[:4]] == [False, False, False, True]
