"""Details of a checkpoint are read by themselves, from its packs only."""

from __future__ import annotations

from pathlib import Path

from image_sets import (
    ImageSet,
    area,
    described,
    files_of,
    open_store,
    restore_files,
    store,
)

from crckpt.store import (
    details_of,
    file_names,
    read_file,
)


def test_single_files_and_details_are_read_without_the_rest(tmp_path: Path) -> None:
    files = {"files.img": bytes(range(256)) * 30, "empty.img": b"", "details": b"a file of that name"}
    images = ImageSet({"pagemap-100.img": [area(5, 1, 0, 2)]}, files)
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, images, described(details=b'{"secret": 1}'))
    expected = files_of(tmp_path / "images-0")
    assert {name: read_file(repository, checkpoint, name) for name in file_names(repository, checkpoint)} == expected
    assert details_of(repository, checkpoint) == b'{"secret": 1}'
    assert restore_files(repository, checkpoint, tmp_path) == expected


def test_details_are_in_no_file_that_can_be_read_without_the_pack(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ImageSet(), described(details=b"--password=hunter2"))
    manifest = (repository.root / "checkpoints" / checkpoint.id / "manifest.json").read_bytes()
    assert b"hunter2" not in manifest
    assert details_of(repository, checkpoint) == b"--password=hunter2"
