"""Fixtures of tests of tracking."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_trackers import METHODS

from crckpt.tracking.preload.library import LIBRARY
from crckpt.tracking.tracker import Method


@pytest.fixture(scope="session")
def library() -> Path:
    """The preload library, as the installation compiled it."""
    if not LIBRARY.exists():
        pytest.skip("crckpt was installed without a C compiler")
    return LIBRARY


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    return tmp_path / "tracked"


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    made: Method = request.param()
    return made
