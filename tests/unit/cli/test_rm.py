"""`crckpt rm` names what it has removed."""

from __future__ import annotations

from command_line import CommandLine

from crckpt.store import Checkpoint


def test_each_is_named(typed: CommandLine, checkpoints: tuple[Checkpoint, Checkpoint]) -> None:
    first, second = checkpoints
    text = typed.say("rm", first.short_id)
    assert text == f"removed {first.short_id}\nfree the space with: crckpt gc\n"
    assert typed.result("rm", "job") == {"removed": [second.id], "lifted_locks": []}
