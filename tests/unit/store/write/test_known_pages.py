"""Pages that the store has are found by their content, and believed only if they are equal."""

from __future__ import annotations

import shutil
from pathlib import Path

from image_sets import (
    ImageSet,
    area,
    described,
    flip,
    open_store,
    page,
    restore_files,
    store,
)
from msgspec.structs import replace


def test_named_parent_of_a_checkpoint_may_be_of_another_job(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    images = ImageSet({"pagemap-100.img": [area(10, *range(1, 101))]})
    first = store(repository, tmp_path, images, described("one"))
    assert store(repository, tmp_path, images, described("two")).parent is None
    child = described("three")
    with_parent = store(repository, tmp_path, images, replace(child, parent=first.id))
    assert (with_parent.parent, with_parent.statistics.new_bytes) == (first.id, 0)


def test_lost_fingerprints_of_a_pack_are_recomputed(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    images = ImageSet({"pagemap-100.img": [area(10, *range(1500))]})
    first = store(repository, tmp_path, images)
    cache = repository.root / "cache/fingerprints" / first.packs[0].digest
    kept = cache.read_bytes()
    cache.unlink()
    assert store(repository, tmp_path, images).statistics.new_bytes == 0
    assert cache.read_bytes() == kept


def test_wrong_fingerprints_of_a_pack_are_detected(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    one = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *range(1, 100))]}), described("one"))
    # One page more: an equal page map would be shared, and the pack of the first job used.
    two = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *range(100, 200))]}), described("two"))
    caches = [repository.root / "cache/fingerprints" / checkpoint.packs[0].digest for checkpoint in (one, two)]
    shutil.copy(caches[1], caches[0])
    again = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *range(100, 200))]}), described("one"))
    assert restore_files(repository, again, tmp_path)["pages-1.img"] == b"".join(map(page, range(100, 200)))
    flip(caches[1], 5)
    again = store(repository, tmp_path, ImageSet({"pagemap-1.img": [area(0, *range(100, 200))]}), described("two"))
    assert again.statistics.new_bytes == 0
