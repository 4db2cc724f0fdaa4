"""Too little memory is reported as such, also where a library ends the process or cannot be loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checkout import TESTS

IMAGES = TESTS / "data/images/tree"
HOST_CANNOT = 20
INTEGRITY = 13
"""These images lack their pages."""


@pytest.mark.parametrize("kilobytes", [50_000, 70_000, 100_000, 110_000, 120_000, 130_000, 150_000])
def test_import_within_a_small_address_space_reports_the_lack_of_memory(tmp_path: Path, kilobytes: int) -> None:
    """The libraries of numpy do not fit in memory, or what numpy allocates does not."""
    crckpt = (sys.executable, "-m", "crckpt", "import", IMAGES, "job", "--store", tmp_path / "store")
    result = subprocess.run(
        ("prlimit", f"--as={kilobytes << 10}", *crckpt), capture_output=True, text=True, check=False
    )
    assert "this is a bug" not in result.stderr
    assert "Traceback" not in result.stderr
    assert "OpenBLAS" not in result.stderr
    assert result.returncode in (INTEGRITY, HOST_CANNOT), result.stderr
    if kilobytes <= 100_000:
        assert "too little memory" in result.stderr


def test_export_to_stdout_is_refused_before_memory_is_needed(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "crckpt", "export", "job", "-", "--store", tmp_path / "store")
    result = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 2
    assert "cannot write to stdout" in result.stderr
    assert "tar -C DIR -c ." in result.stderr
    assert not (tmp_path / "-").exists()
