"""Versions of crckpt, and of the CRIU that it would use, as far as they are known without a trial."""

from __future__ import annotations

from pathlib import Path

import pytest
from criu_scripts import script

from crckpt import __version__
from crckpt.ops.version import version


def test_version_marks_a_criu_that_was_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = script(tmp_path / "broken", "exit 1")
    working = script(tmp_path / "criu", "echo Version: 9.9")
    monkeypatch.setenv("CRCKPT_CRIU", str(broken))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    first, second = version().splitlines()
    assert first == f"crckpt {__version__}"
    assert second == f"CRIU 9.9 ({working}, not tried yet)" or "not tried" not in second, "or a private one is known"
