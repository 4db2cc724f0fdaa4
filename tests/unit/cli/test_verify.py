"""`crckpt verify` ends with 13 where anything is damaged, and names it, and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from command_line import CommandLine
from image_sets import flip, packs

from crckpt.store import Checkpoint, Repository


def test_verify_reports_damage_and_repairs_it(
    command_line: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    first, second = checkpoints
    copy = tmp_path / "copy"
    shutil.copytree(repository.root, copy)
    assert command_line.run("verify").startswith("2 checkpoints OK (")
    assert command_line.result("verify", first.short_id)["checkpoints"] == [first.id]
    (shared,) = (path for path in packs(repository) if path.stem == first.packs[0].digest)
    flip(shared, 100)
    text = command_line.run("verify", "--all", status=13)
    assert text.startswith(f"damaged: pack {shared.stem[:12]}, frame 0: ")
    assert f"affects {first.short_id}\n1 other checkpoint OK\n" in text
    assert "crckpt verify --repair" in text
    damaged = json.loads(command_line.run("verify", "--repair", "--json", status=13))["result"]
    assert (damaged["intact"], damaged["restorable"], damaged["mended"]) == (False, [second.id], [])
    repaired = command_line.run("verify", "--repair", "--from", str(copy))
    assert repaired.startswith(f"repaired pack {shared.stem[:12]}\n2 checkpoints OK (")


def test_verify_refuses_contradictory_options(command_line: CommandLine) -> None:
    assert "--all and job cannot be combined" in command_line.run("verify", "job", "--all", status=2)
    assert "--from needs --repair" in command_line.run("verify", "--from", "/x", status=2)
