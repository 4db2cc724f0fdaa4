"""A stage and writers for the tests that cut short what is done to a store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from in_memory import tmp_path as tmp_path
from stages import Stage, build, memory_directory
from writer import Writers, writers


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A stage for all tests of a module. Each test copies it."""
    with memory_directory() as base:
        yield build(base)


@pytest.fixture(scope="module")
def forked_writers() -> Iterator[Writers]:
    """Writers for all tests of a module, because they take time to start."""
    with writers() as found:
        yield found
