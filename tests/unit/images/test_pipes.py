"""Pipes and what is in them."""

from __future__ import annotations

import os

from image_trees import WHERE, by_title

from crckpt.images import other_files
from crckpt.images.framing import read_image
from crckpt.images.tree import ImageTree


def test_pipes_and_fifos_are_read_from_the_image(tree: ImageTree, images: dict[str, bytes]) -> None:
    ends = [entry.file for entry in tree.root.descriptors if isinstance(entry.file, other_files.Pipe)]
    assert [end.flags & os.O_ACCMODE for end in ends] == [os.O_RDONLY, os.O_WRONLY]
    assert len({end.pipe_id for end in ends}) == 1
    assert [record.extra for record in read_image(images["pipes-data.img"]).records] == [b"in flight"]
    assert isinstance(by_title(tree, f"{WHERE}/fifo"), other_files.Fifo)
