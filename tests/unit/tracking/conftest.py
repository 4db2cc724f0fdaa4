"""What tests of tracking share."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.tracking.preload.library import LIBRARY


@pytest.fixture(scope="session")
def library() -> Path:
    """The preload library, as the installation compiled it."""
    if not LIBRARY.exists():
        pytest.skip("crckpt was installed without a C compiler")
    return LIBRARY
