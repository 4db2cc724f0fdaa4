"""Other processes of a program's user mislead CRIU while it works there: it must not use its own rights for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Crckpt
from stopped_trees import JOB
from target_processes import compile_program, running

from crckpt.tracking.preload.library import restarts_calls

pytestmark = pytest.mark.skipif(not restarts_calls(), reason="CRIU has no preload library")


@pytest.mark.parametrize("how", ["descriptor", "map"])
def test_file_of_root_is_not_changed_instead_of_the_memory_that_criu_shares(
    crckpt: Crckpt, tmp_path: Path, how: str
) -> None:
    content = bytes(range(256)) * 4000
    file = tmp_path / "file"
    file.write_bytes(content)
    file.chmod(0o644 if how == "map" else 0o600)
    with running(compile_program("misleading.c", tmp_path, "-O1"), how, str(file)) as process:
        for _ in range(3):
            # The dump fails if the other process acts in time.
            crckpt.start("dump", str(process.pid), JOB).communicate(timeout=60)
            assert file.read_bytes() == content
