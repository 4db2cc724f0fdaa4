"""`crckpt gc` says how much it frees, or would free."""

from __future__ import annotations

from command_line import CommandLine

from crckpt.store import Checkpoint, Repository


def test_what_is_freed(typed: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]) -> None:
    repository.remove([checkpoint.id for checkpoint in checkpoints])
    told = typed.say("gc", "--dry-run")
    assert told.startswith("would free ")
    result = typed.result("gc")
    assert (len(result["packs"]), result["dry_run"]) == (2, False)
    assert ": 2 packs, 2 leftovers\n" in told
    assert typed.say("gc") == "nothing to free: checkpoints use all data\n"
