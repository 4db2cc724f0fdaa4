"""`crckpt tag` says what a tag names now."""

from __future__ import annotations

from command_line import CommandLine

from crckpt.store import Checkpoint


def test_tag_is_set_and_removed(typed: CommandLine, checkpoints: tuple[Checkpoint, Checkpoint]) -> None:
    _, second = checkpoints
    assert typed.say("tag", "job", "good") == f"job:good now names {second.short_id}\n"
    assert typed.result("tag", "job", "best") == {"job": "job", "tag": "best", "id": second.id}
    assert typed.say("tag", "job", "good", "--remove") == "removed job:good\n"


def test_unknown_checkpoint_is_refused(typed: CommandLine) -> None:
    assert typed.say("tag", "other", "good", status=12).startswith("crckpt: ")
