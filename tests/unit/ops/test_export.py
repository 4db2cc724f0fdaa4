"""Exported images are as durable as the checkpoint: the user may remove it then."""

from __future__ import annotations

from pathlib import Path

from image_sets import ImageSet, area, files_of, open_store, store

from crckpt.host import steps
from crckpt.ops.context import Context
from crckpt.ops.export import export


def test_files_are_synced_after_writing(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *range(1, 300))]}))
    target = tmp_path / "above/exported"
    taken: list[str] = []
    steps.watch(lambda name, _operands: taken.append(name))
    try:
        export(Context(repository.root), checkpoint.id, target)
    finally:
        steps.watch(None)
    files = sorted(target.iterdir())
    assert {path.name: path.read_bytes() for path in files} == files_of(tmp_path / "images-0")
    assert [name for name in taken if name.startswith("exported.")][:3] == [
        "exported.sync-directory",
        "exported.mkdir",
        "exported.sync-directory",
    ], "what was made above it is durable, too"
    last = max(at for at, name in enumerate(taken) if name == "image.write-at")
    synced = [name for name in taken[last:] if name.startswith("exported.")]
    assert synced == ["exported.sync"] * len(files) + ["exported.sync-directory"] * 2
