"""Real images, made by tests/data/images/make: everything that tests/data/images/program.py has open."""

from __future__ import annotations

import pytest
from places import TESTS

from crckpt.images.tree import ImageTree, read_tree

TREE = TESTS / "data/images/tree"


@pytest.fixture(scope="session")
def images() -> dict[str, bytes]:
    """The image files by name."""
    return {path.name: path.read_bytes() for path in TREE.iterdir()}


@pytest.fixture(scope="session")
def tree(images: dict[str, bytes]) -> ImageTree:
    """The whole of them."""
    return read_tree(images.__getitem__, images)
