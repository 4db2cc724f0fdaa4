"""Fixtures of tests of targets."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def systemctl(commands: Path) -> Path:
    """A systemctl that crckpt finds instead of the system's."""
    path = commands / "systemctl"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o700)
    return path
