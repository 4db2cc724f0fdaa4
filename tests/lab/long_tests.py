"""The mark of tests that take too long for CI."""

from __future__ import annotations

import os
from typing import Final

import pytest

takes_long: Final = pytest.mark.skipif(
    not os.environ.get("CRCKPT_ALL_FAULTS"), reason="takes long: run it with CRCKPT_ALL_FAULTS=1"
)
"""Not run by CI: a shorter test there does the like."""
