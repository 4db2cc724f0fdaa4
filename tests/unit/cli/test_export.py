"""`crckpt export` prints where the images are, and how to restore them without crckpt."""

from __future__ import annotations

from pathlib import Path

from command_line import CommandLine

from crckpt.store import Checkpoint


def test_export_prints_the_restore_command(
    command_line: CommandLine, checkpoints: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    place, command = command_line.run("export", "job", str(tmp_path / "out")).splitlines()
    assert place == f"{checkpoints[1].short_id} is in {tmp_path}/out; restore it without crckpt:"
    assert "criu restore" in command
    assert str(tmp_path / "out") in command
    assert (tmp_path / "out/pages-1.img").stat().st_size == 100 * 4096


def test_export_to_stdout_is_refused_and_suggests_tar(command_line: CommandLine) -> None:
    text = command_line.run("export", "a job", "-", status=2)
    assert "cannot write to stdout" in text
    assert "crckpt export 'a job' DIR && tar -C DIR -c ." in text
