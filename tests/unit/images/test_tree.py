"""Real images show what their program had: processes, descriptors, files, sockets, memory."""

from __future__ import annotations

import pytest
from image_trees import UNREAD_IMAGES, WHERE

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import Image, read_image, write_image
from crckpt.images.tree import ImageTree, read_tree


def test_every_image_is_written_back_unchanged(images: dict[str, bytes]) -> None:
    assert {name: write_image(read_image(data, name)) for name, data in images.items()} == images


def test_executable_and_directories_of_the_root_process_are_read_from_images(tree: ImageTree) -> None:
    assert tree.root.exe is not None
    assert tree.root.exe.title.startswith("/usr/bin/python3")
    assert tree.root.cwd is not None
    assert tree.root.root is not None
    assert (tree.root.cwd.title, tree.root.root.title) == (WHERE, "/")


def test_error_for_missing_images_names_them(images: dict[str, bytes]) -> None:
    for name in images:
        without = {other: data for other, data in images.items() if other != name}
        if name.startswith((*UNREAD_IMAGES, "ghost-", "remap-fpath", "tty-info", "fdinfo-", "files", "memfd")):
            continue
        with pytest.raises(IntegrityError, match=rf"^{name} is missing"):
            read_tree(without.__getitem__, without)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("files.img", r"refers to file \d+, which is not in files\.img"),
        ("memfd.img", r"memfd\.img: inode"),
        ("ghost-file-2.img", r"ghost-file-2\.img is missing"),
    ],
)
def test_entries_to_which_images_refer_must_exist(images: dict[str, bytes], name: str, why: str) -> None:
    without = {other: data for other, data in images.items() if other != name}
    with pytest.raises(IntegrityError, match=why):
        read_tree(without.__getitem__, without)


def test_only_images_that_are_needed_are_read(images: dict[str, bytes]) -> None:
    seen: list[str] = []

    def read(name: str) -> bytes:
        seen.append(name)
        return images[name]

    read_tree(read, images)
    assert sorted(seen) == sorted(set(seen)), "an image is read twice"
    assert [name for name in seen if name.startswith((*UNREAD_IMAGES, "ghost-"))] == ["ghost-file-2.img"]


def test_tree_without_processes_is_refused(images: dict[str, bytes]) -> None:
    empty = images | {"pstree.img": write_image(Image(magics.PSTREE, ()))}
    with pytest.raises(IntegrityError, match=r"pstree\.img: has no process"):
        read_tree(empty.__getitem__, empty)
