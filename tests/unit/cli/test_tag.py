"""`crckpt tag` prints the checkpoint that a tag names."""

from __future__ import annotations

from command_line import CommandLine

from crckpt.store import Checkpoint


def test_tag_command_sets_and_removes_a_tag(
    command_line: CommandLine, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    _, second = checkpoints
    assert command_line.run("tag", "job", "good") == f"job:good now names {second.short_id}\n"
    assert command_line.result("tag", "job", "best") == {"job": "job", "tag": "best", "id": second.id}
    assert command_line.run("tag", "job", "good", "--remove") == "removed job:good\n"


def test_tag_command_refuses_an_unknown_checkpoint(command_line: CommandLine) -> None:
    assert command_line.run("tag", "other", "good", status=12).startswith("crckpt: ")
