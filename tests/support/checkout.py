"""The places of things in the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SUPPORT: Final = Path(__file__).parent
TESTS: Final = SUPPORT.parent
PROJECT: Final = TESTS.parent
