"""`crckpt gc` prints how much it frees, or would free."""

from __future__ import annotations

from pathlib import Path

from command_line import CommandLine

from crckpt.store import Checkpoint, Repository


def test_gc_reports_freed_bytes(
    command_line: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    assert command_line.run("gc") == "nothing to free: checkpoints use all data\n"
    repository.remove([checkpoint.id for checkpoint in checkpoints])
    output = command_line.run("gc", "--dry-run")
    assert output.startswith("would free ")
    result = command_line.result("gc")
    assert (len(result["packs"]), result["dry_run"]) == (2, False)
    assert output.endswith(": 2 packs\n")
    assert command_line.run("gc") == "nothing to free: the store has no checkpoints\n"


def test_gc_reports_what_interrupted_commands_have_left(command_line: CommandLine, repository: Repository) -> None:
    (Path(repository.backend.location) / "tmp/9999999-dead").mkdir()
    assert command_line.run("gc").endswith(": 0 packs, 1 leftover of interrupted commands\n")
