"""`crckpt core` prints the file and the command to open it."""

from __future__ import annotations

from pathlib import Path

from command_line import CommandLine
from recorded_images import RECORDED

from crckpt.store import Checkpoint


def test_core_names_the_file_and_the_gdb_command(
    command_line: CommandLine, recordings: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    path = tmp_path / "core file"
    wrote, gdb = command_line.run("core", "job", "--output", str(path)).splitlines()
    assert wrote.startswith(
        f"wrote {path}: process {RECORDED.root.pid} (python3) of {recordings[1].short_id}, 2 threads"
    )
    assert gdb.startswith("open it with: gdb /usr/bin/python3")
    assert gdb.endswith(f" '{path}'")
    assert path.read_bytes().startswith(b"\x7fELF")
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"{path} exists" in command_line.run("core", "job", "--output", str(path), status=2)
