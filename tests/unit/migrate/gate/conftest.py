"""A live process, and the host to which it would move."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The store of the destination; not made yet."""
    return tmp_path / "store"
