"""The state of the test's own process, which code under test is to leave as it was."""

from __future__ import annotations

import os
from pathlib import Path


def children() -> frozenset[str]:
    """The PIDs of this process's children."""
    return frozenset(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def descriptors() -> list[Path]:
    """The open descriptors of this process, as names in /proc/self/fd."""
    return sorted(Path("/proc/self/fd").iterdir())
