"""Modules that commands load before they start: the deterministic part of their start-up time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from image_sets import ImageSet, area, described, open_store, store

_PROGRAM = """
import atexit, sys
from crckpt.__main__ import main
wanted = sys.argv.pop(1).split()
atexit.register(lambda: sys.stderr.write(" ".join(name for name in wanted if name in sys.modules)))
main()
"""


@pytest.mark.parametrize(
    ("words", "without"),
    [
        (("--version",), "numpy psutil ptrace rich typer zstandard cryptography msgspec subprocess"),
        (("list",), "numpy psutil ptrace rich zstandard cryptography pydantic crckpt.criu.find"),
        (("--help",), "numpy psutil ptrace zstandard cryptography pydantic crckpt.store crckpt.criu.find"),
        (("gc", "--dry-run", "--json"), "numpy psutil ptrace rich zstandard cryptography pydantic crckpt.criu.find"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_startup_loads_no_slow_module(tmp_path: Path, words: tuple[str, ...], without: str) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(1, 1)]}), described())
    place = ("--store", str(repository.root)) if not words[0].startswith("--") else ()
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, without, *words, *place], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout
