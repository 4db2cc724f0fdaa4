"""Fixtures of tests of CRIU's programs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CRIU is named by the surroundings or lies on PATH."""
    monkeypatch.delenv("CRCKPT_CRIU", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """A memory of our own."""
    return tmp_path / "cache/criu.json"
