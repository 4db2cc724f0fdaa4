"""The last moment before a checkpoint exists, and checkpoints that come from another store."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_sets import ONE_PROCESS, described, flip, manifest_path, of_pages, open_store, packs, store, write_set

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.model import CheckpointId
from crckpt.store import Checkpoint, Repository, ingest


def test_callback_of_a_commit_gets_the_checkpoint_before_its_manifest_is_written(
    repository: Repository, tmp_path: Path
) -> None:
    calls: list[tuple[Checkpoint, bytes, tuple[CheckpointId, ...]]] = []

    def before(checkpoint: Checkpoint, manifest: bytes) -> None:
        calls.append((checkpoint, manifest, repository.ids()))
        # Its packs are there already: another store can get them.
        assert {path.stem for path in packs(repository)} == {use.digest for use in checkpoint.packs}

    images = write_set(tmp_path / "images", ONE_PROCESS)
    stored = ingest(repository, images, described(), before=before)
    assert calls == [(stored, manifest_path(repository, stored.id).read_bytes(), ())]


def test_no_manifest_is_written_if_the_callback_of_a_commit_refuses(repository: Repository, tmp_path: Path) -> None:
    def refuse(_checkpoint: Checkpoint, _manifest: bytes) -> None:
        raise StoreUnusable("the other side is gone")

    images = write_set(tmp_path / "images", ONE_PROCESS)
    with pytest.raises(StoreUnusable, match="the other side is gone"):
        ingest(repository, images, described(), before=refuse)
    assert repository.ids() == ()
    assert ingest(repository, images, described()).sequence == 1


def test_sequence_number_of_a_checkpoint_can_start_above_that_of_another_store(
    repository: Repository, tmp_path: Path
) -> None:
    assert repository.highest_sequence() == 0
    images = write_set(tmp_path / "images", ONE_PROCESS)
    numbers = [ingest(repository, images, described(), at_least=least).sequence for least in (0, 10, 5, 12)]
    assert numbers == [1, 10, 11, 12]
    assert repository.highest_sequence() == 12


def test_other_store_cannot_exhaust_the_sequence_numbers(repository: Repository, tmp_path: Path) -> None:
    images = write_set(tmp_path / "images", ONE_PROCESS)
    with pytest.raises(StoreUnusable, match="other store has a checkpoint with sequence number 9007199254740992"):
        ingest(repository, images, described(), at_least=(1 << 53) + 1)
    assert ingest(repository, images, described()).sequence == 1


def test_manifest_of_another_store_is_written_unchanged(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = open_store(tmp_path / "other")
    for number in range(3):
        last = store(other, tmp_path, of_pages(number + 1))
    manifest = manifest_path(other, last.id).read_bytes()
    assert repository.add_manifest(manifest, last.id) == last
    assert manifest_path(repository, last.id).read_bytes() == manifest
    assert repository.get(last.id).sequence == 3
    # A second time, too.
    assert repository.add_manifest(manifest, last.id) == last


def test_damaged_manifest_is_not_written(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = open_store(tmp_path / "other")
    checkpoint = store(other, tmp_path, ONE_PROCESS)
    manifest = manifest_path(other, checkpoint.id).read_bytes()
    with pytest.raises(IntegrityError, match="SHA-256 is not its id"):
        repository.add_manifest(manifest + b" ", checkpoint.id)
    assert repository.ids() == ()
    repository.add_manifest(manifest, checkpoint.id)
    flip(manifest_path(repository, checkpoint.id), 100)
    with pytest.raises(IntegrityError, match="SHA-256 is not its id"):
        repository.add_manifest(manifest, checkpoint.id)
