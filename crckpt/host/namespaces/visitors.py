"""Processes that have entered a PID namespace from outside."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def has_visitors() -> bool:
    """Return whether a process with a parent outside our namespace runs in it (nsenter): its parent is shown as 0."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and path.name != "1":
            with suppress(OSError):
                fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] != "Z" and fields[1] == "0":
                    return True
    return False
