"""A command imports only what it needs before it begins."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("verb", ["dump.dump", "dump.checkpoint", "restore.restore", "list", "restore.rehearse"])
def test_slow_modules_are_imported_only_where_used(verb: str) -> None:
    said = f"import crckpt.ops.{verb}, sys; print(*{{'cryptography', 'numpy', 'rich', 'zstandard'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
