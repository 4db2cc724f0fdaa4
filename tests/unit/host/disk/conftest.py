"""Fixtures of tests of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def wide_umask() -> Iterator[None]:
    """Set an umask that takes every right: modes must not depend on it."""
    before = os.umask(0o777)
    yield
    os.umask(before)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of which the first 4 bytes belong to a checkpoint."""
    path = tmp_path / "log"
    path.write_bytes(b"old new lines")
    path.chmod(0o644)
    return path
