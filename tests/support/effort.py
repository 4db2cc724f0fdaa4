"""The effort of a test: a short run tries only a part."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

EXTENT: Final = os.environ.get("CRCKPT_EXTENT", "all")
"""Which tests run: `short` leaves out those of tests/left-out.toml, `all` what takes hours, `hours` nothing."""
_PART: Final = 4 if EXTENT == "short" else 1


def examples(usual: int) -> int:
    """Return how many random examples to try: in a short run a quarter of the usual number."""
    return usual // _PART


def some(moments: Sequence[T], first: int = 0) -> Sequence[T]:
    """Return all of these moments or cases: in a short run every fourth, from one that `first` chooses."""
    return moments[first % _PART :: _PART]
