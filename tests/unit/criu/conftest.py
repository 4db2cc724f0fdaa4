"""Fixtures of tests of CRIU's programs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def no_criu_on_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CRIU is named by the surroundings or lies on PATH."""
    monkeypatch.delenv("CRCKPT_CRIU", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.fixture
def cache_file(tmp_path: Path) -> Path:
    """The path of a cache file that only this test uses."""
    return tmp_path / "cache/criu.json"
