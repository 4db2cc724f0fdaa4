"""What tests of the store share: a store to copy, and processes that change it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stages import Stage, build, memory_directory
from writer import Writers, writers


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """A store in memory. Each test copies it."""
    with memory_directory() as base:
        yield build(base)


@pytest.fixture(scope="session")
def forked() -> Iterator[Writers]:
    """Start the process that forks writers. Its start is slow."""
    with writers() as found:
        yield found
