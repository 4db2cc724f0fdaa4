"""The tmp_path of tests about stores: a store syncs all that it writes, and they do not ask whether a disk has it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)
