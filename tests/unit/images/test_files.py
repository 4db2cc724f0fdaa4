"""files.img: every open file."""

from __future__ import annotations

from image_trees import one

from crckpt.images import magics, regfile, wire
from crckpt.images.files import read_files
from crckpt.images.other_files import OtherFile
from crckpt.images.tree import ImageTree


def test_no_file_is_of_an_unknown_kind(tree: ImageTree, images: dict[str, bytes]) -> None:
    assert [file for file in tree.files if file.kind == "unknown"] == []
    links = [file for file in tree.regular_files if file.remap and file.remap.kind == regfile.LINKED]
    assert len(tree.files) + len(links) == len(read_files(images["files.img"]))


def test_an_unknown_type_of_file_is_kept() -> None:
    data = one(magics.FILES, (1, wire.VARINT, 99), (2, wire.VARINT, 7))
    assert read_files(data) == (OtherFile(7, "unknown", 0),)
