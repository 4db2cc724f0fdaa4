"""What tests of the host share."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.host.process import run


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, the only one where crckpt looks for commands to run."""
    path = tmp_path / "commands"
    path.mkdir()
    # crckpt does not pass its own environment on: a PATH of ours would change nothing.
    monkeypatch.setitem(run.ENVIRONMENT, "PATH", str(path))
    return path
