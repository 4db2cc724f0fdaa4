"""`crckpt import` prints what it has stored."""

from __future__ import annotations

from pathlib import Path

from command_line import CommandLine
from image_sets import write_set
from recorded_images import PAGES, RECORDED, image_set

from crckpt.store import Repository


def test_import_prints_the_checkpoint_and_job(
    command_line: CommandLine, repository: Repository, tmp_path: Path
) -> None:
    images = write_set(tmp_path / "images", image_set(PAGES))
    text = command_line.run("import", str(images), "job", "--note", "a note")
    (made,) = repository.checkpoints()
    assert text.startswith(f"{made.short_id}  job: {len(RECORDED.processes)} processes, ")
    assert made.note == "a note"
    assert command_line.result("import", str(images), "job")["job"] == "job"
