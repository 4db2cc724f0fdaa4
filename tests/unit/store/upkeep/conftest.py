"""Stores to be damaged."""

from __future__ import annotations

import pytest
from image_sets import ONE_PROCESS, ImageSet, area, described, open_store, store

from crckpt.store import Checkpoint, Repository


@pytest.fixture(scope="module")
def one_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, Checkpoint]:
    """A store with one checkpoint in one pack of two frames; every test puts back what it damages."""
    base = tmp_path_factory.mktemp("one-checkpoint")
    repository = open_store(base)
    return repository, store(repository, base, ONE_PROCESS)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Four checkpoints that share some of their packs, and no frame that nobody needs."""
    base = tmp_path_factory.mktemp("series")
    repository = open_store(base)
    for number in range(3):
        pages = [*range(1, 150), *range(1000 * number, 1000 * number + 60)]
        store(repository, base, ImageSet({"pagemap-1.img": [area(0, *pages)]}))
    store(repository, base, ONE_PROCESS, described("other"))
    return repository
