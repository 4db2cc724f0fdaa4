"""What tests of targets share."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.host.process import run


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a systemctl can be put that is found before the system's."""
    monkeypatch.setitem(run.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")
    path = tmp_path / "systemctl"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o700)
    return path
