"""`crckpt list` as people and as scripts read it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from datetime import UTC, datetime

import pytest
from command_line import CommandLine
from image_sets import manifest_path

from crckpt.model import JobName
from crckpt.store import Checkpoint, Repository
from crckpt.store.pending import announced


def test_list_prints_each_checkpoint_on_one_line(
    command_line: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    repository.tag(second.id, "good")
    titles, *lines = command_line.run("list").splitlines()
    assert titles.split() == ["id", "job", "created", "procs", "frozen", "raw", "new", "stored", "tags,", "note"]
    assert [line.split()[:2] for line in lines] == [[first.short_id, "job"], [second.short_id, "job"]]
    assert "good" in lines[1]
    result = command_line.result("list", "job")
    assert [entry["id"] for entry in result["checkpoints"]] == [first.id, second.id]
    assert [entry["tags"] for entry in result["checkpoints"]] == [[], ["good"]]
    assert (result["pending"], result["unreadable"]) == ([], [])


LISTING_PROGRAM = """
import sys
from crckpt.cli.app import run
sys.exit(run(["list", "--store", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("columns", "titles"),
    [
        (140, ["id", "job", "created", "procs", "frozen", "raw", "new", "stored"]),
        (100, ["id", "job", "created", "procs", "frozen", "new", "stored"]),
        (80, ["id", "job", "created", "procs", "frozen", "stored"]),
        (66, ["id", "job", "created", "stored"]),
    ],
)
def test_lines_of_the_list_command_fit_the_terminal(
    repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint], columns: int, titles: list[str]
) -> None:
    """The command runs in a real terminal of this width."""
    repository.tag(checkpoints[0].id, "before-the-upgrade-of-everything-that-was-old")
    terminal, inside = pty.openpty()
    termios.tcsetwinsize(inside, (24, columns))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    argv = [sys.executable, "-c", LISTING_PROGRAM, str(repository.root)]
    subprocess.run(argv, stdout=inside, env=environment, check=True)
    os.close(inside)
    lines = os.read(terminal, 1 << 16).decode().splitlines()
    os.close(terminal)
    assert lines[0].split() == [*titles, "tags,", "note"]
    assert [line.split()[0] for line in lines[1:]] == [checkpoint.short_id for checkpoint in checkpoints]
    assert max(map(len, lines)) <= columns
    assert "before-the-" in lines[1]


def test_list_of_an_empty_store_suggests_dump(command_line: CommandLine) -> None:
    assert command_line.run("list") == "no checkpoints yet; make one with: crckpt dump PID JOB\n"


def test_list_shows_pending_and_unreadable_checkpoints(
    command_line: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    path = manifest_path(repository, checkpoints[0].id)
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    with announced(repository.backend, JobName("other"), datetime.now(UTC), None, alone=False):
        text = command_line.run("list")
        assert [entry["state"] for entry in command_line.result("list")["pending"]] == ["committing"]
    first, *_, last = text.splitlines()
    assert checkpoints[0].short_id in first
    assert last.split()[:2] == ["committing", "other"]
