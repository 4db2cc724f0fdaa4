"""A command imports only what it needs before it begins."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = {"cryptography", "numpy", "psutil", "ptrace", "rich", "zstandard"}


def loaded_by(module: str, slow: set[str]) -> set[str]:
    program = f"import {module}, sys; print(*({slow} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize("verb", ["dump.dump", "dump.checkpoint", "restore.restore", "list", "restore.rehearse"])
def test_slow_modules_are_imported_only_where_used(verb: str) -> None:
    assert loaded_by(f"crckpt.ops.{verb}", SLOW) == set()


@pytest.mark.parametrize("verb", ["inspect.show", "verify", "gc", "tag", "dump.pre_dump", "doctor"])
def test_commands_that_show_or_check_do_not_load_ptrace(verb: str) -> None:
    assert loaded_by(f"crckpt.ops.{verb}", {"ptrace"}) == set()
