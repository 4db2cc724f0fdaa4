"""What tests of operations share."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_sets import of_pages, opened, store

from crckpt.ops.context import Context
from crckpt.store import Checkpoint, Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return opened(tmp_path)


@pytest.fixture
def context(repository: Repository) -> Context:
    return Context(repository.root)


@pytest.fixture
def checkpoints(repository: Repository, tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    """Two of one job; some of the pages are the same."""
    first = store(repository, tmp_path, of_pages(*range(1, 100)))
    return first, store(repository, tmp_path, of_pages(*range(50, 150)))
