"""Control groups for tests. They are the machine's, whatever the namespace, and so no PID makes a name unique."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


def make_group(above: Path) -> Path:
    """Make a control group; the test is skipped where none can be made."""
    try:
        return Path(tempfile.mkdtemp(prefix="crckpt-test-", dir=above))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
