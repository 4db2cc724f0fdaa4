"""A disk without room, to whatever level it is full: no half checkpoint, nothing lost, and removing still works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import full_disk
import pytest


@pytest.mark.parametrize("kind", list(full_disk.FULL_DISKS))
def test_full_disk_during_any_command_loses_nothing_from_the_store(kind: str, tmp_path: Path) -> None:
    command = ["unshare", "--mount", sys.executable, full_disk.__file__, str(tmp_path), kind]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    refused = {name: int(times) for name, times in map(str.split, ended.stdout.splitlines())}
    assert refused["rm"] == 0
    assert refused["tag"] >= 1
    assert refused["create"] >= 1
    # At least a transaction, its owner, a pack, a directory for it, a manifest and a directory for that.
    assert refused["ingest"] >= {"bytes": 30, "files": 6}[kind]
