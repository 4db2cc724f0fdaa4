"""Each script prints its description and arguments with --help, and does nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import PROJECT

# The first installs what lists its rows; the other one is the init of a virtual machine.
OTHERS = ("bench", "soft-dirty-init")
SCRIPTS = tuple(
    path
    for directory in ("scripts", "scripts/lab")
    for path in sorted((PROJECT / directory).iterdir())
    if path.is_file() and os.access(path, os.X_OK) and path.name not in OTHERS
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.parametrize("word", ["-h", "--help"])
def test_option_help_of_each_script_only_prints_a_description(script: Path, word: str) -> None:
    result = subprocess.run([script, word], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout[0].isupper() or result.stdout.startswith("usage: ")
    assert "#!" not in result.stdout


def test_pytest_option_list_needs_works_with_several_workers() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "--list-needs", "-n2", __file__]
    result = subprocess.run(words, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert "needs: tini " in result.stdout
