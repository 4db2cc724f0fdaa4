"""`crckpt rm` names what it has removed, and asks before a program is lost."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CommandLine
from image_sets import described, of_pages, store
from msgspec.structs import replace

from crckpt.store import Checkpoint, Repository

REFUSED = 24


def test_rm_lists_each_removed_checkpoint(
    command_line: CommandLine, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    text = command_line.run("rm", first.short_id)
    assert text == f"removed {first.short_id}\nfree the space with: crckpt gc\n"
    result = command_line.result("rm", "job")
    assert result == {"removed": [second.id], "lifted_locks": [], "dry_run": False, "bytes": None}


def test_rm_with_quiet_prints_only_what_was_asked_for(
    command_line: CommandLine, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    assert command_line.run("rm", "-q", "job") == ""
    # The answer that the user asked for is printed with --quiet, too.
    assert "would remove" in command_line.run("rm", "--quiet", "--dry-run", "job")
    assert command_line.repository.ids() == (checkpoints[0].id,)


def test_rm_with_dry_run_removes_nothing(command_line: CommandLine, checkpoints: tuple[Checkpoint, Checkpoint]) -> None:
    first, second = checkpoints
    text = command_line.run("rm", "job", "--all", "--dry-run")
    assert text.startswith(f"would remove {first.short_id}\nwould remove {second.short_id}\nthat would free ")
    result = command_line.result("rm", "job", "--all", "--dry-run")
    assert result["removed"] == [first.id, second.id]
    assert result["bytes"] > 0
    assert command_line.repository.checkpoints() == checkpoints


@pytest.fixture
def stopped_checkpoint(repository: Repository, tmp_path: Path) -> Checkpoint:
    """A checkpoint of a program that its dump ended."""
    return store(repository, tmp_path, of_pages(1), replace(described(), stopped=True))


def test_rm_without_a_terminal_keeps_the_last_checkpoint_of_a_stopped_program(
    command_line: CommandLine, stopped_checkpoint: Checkpoint
) -> None:
    output = command_line.run("rm", "job", "--all", status=REFUSED)
    assert output.startswith(f"crckpt: nothing was removed: only {stopped_checkpoint.short_id} (job, ")
    assert "has the last state of a program that dump --stop ended; it was not restored" in output
    assert output.endswith("hint: to remove it anyway: crckpt rm job --all --yes\n")
    command_line.run("rm", "job", "--json", status=REFUSED)
    assert "note: " in command_line.run("rm", "job", "--dry-run")
    assert command_line.repository.checkpoints() == (stopped_checkpoint,)
    command_line.run("rm", "job", "--yes")
    assert command_line.repository.checkpoints() == ()


@pytest.mark.parametrize(
    ("answer", "status"), [(b"y\n", 0), (b"n\n", REFUSED), (b"\n", REFUSED), (b"\x04", REFUSED)], ids=repr
)
def test_rm_asks_at_a_terminal_before_it_removes_the_last_checkpoint(
    repository: Repository, stopped_checkpoint: Checkpoint, answer: bytes, status: int
) -> None:
    terminal, inside = pty.openpty()
    argv = [sys.executable, "-m", "crckpt", "rm", "job", "--store", str(repository.root)]
    with subprocess.Popen(argv, stdin=inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(inside)
        assert process.stderr is not None
        output = b""
        while b"[y/N]" not in output:
            part = os.read(process.stderr.fileno(), 1 << 10)
            assert part, output
            output += part
        os.write(terminal, answer)
        _, rest = process.communicate(timeout=60)
    os.close(terminal)
    assert process.returncode == status
    assert stopped_checkpoint.short_id.encode() in output
    assert (b"nothing was removed" in rest) == bool(status)
    assert bool(repository.checkpoints()) == bool(status)
