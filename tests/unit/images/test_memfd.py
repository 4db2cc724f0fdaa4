"""Memory files, and their inodes in memfd.img."""

from __future__ import annotations

import pytest
from image_trees import by_title, one

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.other_files import MemFd, MemFdInode, read_memfd_inodes
from crckpt.images.tree import ImageTree
from crckpt.images.wire import BYTES, VARINT


def test_memory_file_has_name_and_size_of_its_inode(tree: ImageTree) -> None:
    memory = by_title(tree, "memfd:scratch")
    assert isinstance(memory, MemFd)
    assert (memory.name, memory.size) == ("scratch", 12345)
    assert memory.shmid != 0


def test_memory_file_inodes_are_read() -> None:
    fields = ((1, BYTES, b"name"), (4, VARINT, 8192), (5, VARINT, 77), (7, VARINT, 3))
    assert read_memfd_inodes(one(magics.MEMFD_INODE, *fields)) == (MemFdInode(3, "name", 8192, 77),)
    with pytest.raises(IntegrityError, match=r"memfd\.img: field 7 is missing"):
        read_memfd_inodes(one(magics.MEMFD_INODE, *fields[:3]))
