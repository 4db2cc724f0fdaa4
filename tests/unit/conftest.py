"""What unit tests share: the recorded tree, and a program that obeys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from entering import Told, told
from recorded import IMAGES, RECORDED

from crckpt.images.tree import ImageTree


@pytest.fixture(scope="session")
def images() -> dict[str, bytes]:
    """The files of tests/data/images/tree by name."""
    return dict(IMAGES)


@pytest.fixture(scope="session")
def tree() -> ImageTree:
    """The tree that they describe: a real one, with everything open that tests/data/images/program.py opens."""
    return RECORDED


@pytest.fixture
def target() -> Iterator[Told]:
    """A running program that executes what it is told."""
    with told() as process:
        yield process
