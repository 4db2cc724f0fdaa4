"""A live process, and the host to which it would move."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def is_root() -> None:
    """Skip a test for other users."""
    if os.geteuid() != 0:
        pytest.skip("only root may read the maps of a process, and make namespaces")


@pytest.fixture
def destination_store(tmp_path: Path) -> Path:
    """The store of the destination; not made yet."""
    return tmp_path / "store"
