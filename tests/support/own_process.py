"""The state of the test's own process, which code under test is to leave as it was."""

from __future__ import annotations

import os
from pathlib import Path


def children() -> frozenset[str]:
    """The PIDs of its children."""
    return frozenset(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def descriptors() -> list[Path]:
    """Its open descriptors, below /proc."""
    return sorted(Path("/proc/self/fd").iterdir())
