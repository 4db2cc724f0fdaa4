"""inventory.img: the format and the run."""

from __future__ import annotations

import pytest

from crckpt.errors import IntegrityError
from crckpt.images import wire
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.inventory import read_inventory
from crckpt.images.tree import ImageTree


def test_inventory_of_a_dump_is_read(tree: ImageTree) -> None:
    assert tree.inventory.version == 2
    assert tree.inventory.run_id is not None
    assert len(tree.inventory.run_id) == 36
    assert not tree.inventory.tcp_close


def test_inventory_of_a_newer_image_format_is_refused_by_number(images: dict[str, bytes]) -> None:
    image = read_image(images["inventory.img"], "inventory.img")
    newer = Record(image.records[0].payload + wire.encode([(1, wire.VARINT, 3)]))
    with pytest.raises(IntegrityError, match=r"have CRIU's format 3, but this crckpt reads at most 2"):
        read_inventory(write_image(Image(image.magic, (newer,))))
