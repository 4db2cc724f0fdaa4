"""^C ends a command wherever it comes, also where the command goes on after errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from image_sets import described, of_pages, store
from msgspec.structs import replace

from crckpt.store import Repository

# `rm` looks whether a checkpoint was restored, and goes on if that fails.
INTERRUPTED_PROGRAM = """
import os, signal, sys
from crckpt import __main__
from crckpt.store import Repository

Repository.is_restored = lambda *_: os.kill(os.getpid(), signal.SIGINT)
sys.argv[0] = "crckpt"
__main__.main()
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_interruption_ends_a_command_that_continues_after_errors(
    repository: Repository, tmp_path: Path, as_json: bool
) -> None:
    checkpoint = store(repository, tmp_path, of_pages(1), replace(described(), stopped=True))
    words = ("rm", checkpoint.id, "--store", str(repository.root), *(["--json"] if as_json else []))
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 130
    if as_json:
        error = {"code": 130, "message": "interrupted by SIGINT", "hint": "", "causes": []}
        assert (json.loads(result.stdout)["error"], result.stderr) == (error, "")
    else:
        assert (result.stdout, result.stderr) == ("", "crckpt: interrupted by SIGINT\n")
    assert repository.checkpoints() == (checkpoint,)
