"""The tmp_path of tests about stores: a store syncs all that it writes, and they do not ask whether a disk has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stages import memory_directory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory."""
    with memory_directory() as directory:
        yield directory
