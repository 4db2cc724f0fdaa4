"""Fixtures of unit tests: the recorded tree, a program that runs statements, and a store with two checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import examples
from hypothesis import HealthCheck, settings
from image_sets import of_pages, open_store, page, store
from recorded_images import IMAGES, PAGES, RECORDED, image_set
from target_processes import StatementRunner, statement_runner

from crckpt.images.tree import ImageTree
from crckpt.model import PAGE_SIZE
from crckpt.store import Checkpoint, Repository

# A busy machine is slow to make an example, and slow to try it.
settings.register_profile("busy", max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("busy")


@pytest.fixture(scope="session")
def images() -> dict[str, bytes]:
    """The files of tests/data/images/tree by name."""
    return dict(IMAGES)


@pytest.fixture(scope="session")
def tree() -> ImageTree:
    """The tree of the recorded images: a real one, with everything open that tests/data/images/program.py opens."""
    return RECORDED


@pytest.fixture
def target() -> Iterator[StatementRunner]:
    """A running program that executes statements on request."""
    with statement_runner() as process:
        yield process


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """An empty store."""
    return open_store(tmp_path)


@pytest.fixture
def checkpoints(repository: Repository, tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    """Two checkpoints of one job, which have some equal pages."""
    first = store(repository, tmp_path, of_pages(*range(1, 100)))
    return first, store(repository, tmp_path, of_pages(*range(50, 150)))


@pytest.fixture(scope="session")
def recorded_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Checkpoint, Checkpoint]]:
    """A store with two checkpoints of the recorded tree, and these."""
    base = tmp_path_factory.mktemp("recorded")
    repository = open_store(base)
    first = store(repository, base, image_set(PAGES))
    name = f"pagemap-{RECORDED.root.pid}.img"
    memory = RECORDED.root.memory
    assert memory is not None
    heap = next(vma for vma in memory.vmas if vma.kind == "heap")
    number = next(number for number in PAGES[name] if heap.start <= number * PAGE_SIZE < heap.end)
    changed = {**PAGES, name: {**PAGES[name], number: page(4242)}}
    return repository.root, (first, store(repository, base, image_set(changed)))


@pytest.fixture
def recordings(
    repository: Repository, recorded_store: tuple[Path, tuple[Checkpoint, Checkpoint]]
) -> tuple[Checkpoint, Checkpoint]:
    """Two checkpoints of the recorded tree: the second has another content in one page of the root's heap."""
    root, both = recorded_store
    shutil.copytree(root, repository.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("store.json", "lock"))
    return both
