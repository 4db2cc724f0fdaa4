"""What tests of tracking share."""

from __future__ import annotations

from pathlib import Path

import pytest
from entering import preload_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preload library, compiled."""
    return preload_library(tmp_path_factory.mktemp("preload"))
