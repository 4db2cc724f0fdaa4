"""A test that hangs fails by name, whatever it waits in, and those after it run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from checkout import SUPPORT

HANGING_TESTS = """
import os
import subprocess
from pathlib import Path

import pytest

@pytest.fixture
def hangs_in_the_end():
    yield
    wait, _open = os.pipe()
    with subprocess.Popen(["cat"], stdin=wait) as cat:
        cat.wait()

def test_hangs(hangs_in_the_end):
    child = os.fork()
    if not child:
        os.read(os.pipe()[0], 1)
    try:
        os.waitpid(child, 0)
    finally:
        os.waitpid(child, 0)

@pytest.mark.parametrize("_number", range(9))
def test_after(_number):
    Path("ran").touch()
"""


def test_hanging_test_fails_and_the_tests_after_it_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGING_TESTS)
    # In a worker: pytest-xdist waits for whatever still has the worker's pipes, like a fork of it.
    options = ["-p", "hangs", "-p", "no:cacheprovider", "--rootdir=.", "--limit=2", "--numprocesses=1", "-q", "-rfE"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "200", "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    for outcome in ("FAILED", "ERROR"):
        assert f"{outcome} test_it.py::test_hangs - Failed: hangs: takes more than 2 s" in result.stdout
    assert (tmp_path / "ran").exists()
