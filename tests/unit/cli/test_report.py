"""`crckpt report` checks its arguments before it creates a file, and distinguishes logs from checkpoints by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CommandLine

from crckpt.store import Checkpoint


@pytest.fixture(autouse=True)
def current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in which the command runs."""
    path = tmp_path / "elsewhere"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.mark.usefixtures("checkpoints")
def test_report_of_an_unknown_checkpoint_is_refused(command_line: CommandLine, current_directory: Path) -> None:
    # By its name alone, whatever lies in the current directory.
    (current_directory / "dump").write_text("(00.01) Error (criu/a.c:1): x\n")
    output = command_line.run("report", "dump", status=12)
    assert "(for a log: crckpt report ./dump)" in output
    assert [path.name for path in current_directory.iterdir()] == ["dump"]


@pytest.mark.parametrize("name", ["none.log", "./none", "/none"])
def test_report_of_an_unknown_log_is_refused(command_line: CommandLine, current_directory: Path, name: str) -> None:
    output = command_line.run("report", name, status=2)
    assert "cannot read the log" in output
    assert list(current_directory.iterdir()) == []


def test_report_does_not_overwrite_an_existing_file(
    command_line: CommandLine, current_directory: Path, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    (current_directory / "out.tar.gz").write_text("something else")
    command_line.run("report", checkpoints[0].short_id, "--output", "out.tar.gz", status=2)
    assert (current_directory / "out.tar.gz").read_text() == "something else"
