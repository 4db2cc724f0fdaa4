"""Smaller bounds, so that little data reaches them, and a short wait is one too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest


@contextmanager
def smaller_bounds(module: ModuleType, **values: float) -> Iterator[None]:
    """Set these constants of `module` for the block."""
    # The code of crckpt runs unchanged. Only its limits are other numbers, as for a slower or smaller machine.
    with pytest.MonkeyPatch.context() as patched:
        for name, value in values.items():
            assert isinstance(getattr(module, name), int | float)
            patched.setattr(module, name, value)
        yield
