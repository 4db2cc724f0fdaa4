"""The whole store on a backend that is no directory: nothing that it keeps goes around the seam."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_sets import ImageSet, area, described, files_of, open_store, parent_area, restore_files, store, write_set
from memory_backend import MemoryBackend
from msgspec.structs import replace

from crckpt.errors import IntegrityError, NoSuchCheckpoint, StoreLocked
from crckpt.model import JobName
from crckpt.store import (
    Checkpoint,
    Repository,
    collect_garbage,
    details_of,
    ingest,
    materialise_base,
    repair,
    verify,
)
from crckpt.store.backend.local import Backend
from crckpt.store.layout import (
    DESCRIPTION,
    FINGERPRINT_KEY,
    SAMPLES,
    checkpoint_directory,
    fingerprints_name,
    job_label,
    manifest_name,
    pack_name,
)
from crckpt.store.pending import announced
from crckpt.store.repository import new_description, read_store_id

FIRST = ImageSet({"pagemap-1.img": [area(5, *range(1, 400))]}, {"core-1.img": b"registers" * 99})
SECOND = ImageSet({"pagemap-1.img": [area(5, *range(1, 380), *range(900, 950))]}, {"core-1.img": b"changed" * 99})


def _in_memory(base: Path, name: str = "scratch") -> tuple[Repository, MemoryBackend]:
    (base / name).mkdir()
    backend = MemoryBackend(base / name)
    backend.put(DESCRIPTION, new_description(), "description")
    return Repository(backend, read_store_id(backend)), backend


def _stored(backend: MemoryBackend) -> set[str]:
    """The names of all files but samples of fingerprints, whose names are random."""
    return {name for name in backend.files if not name.startswith(f"{SAMPLES}/")}


def _names(checkpoints: tuple[Checkpoint, ...]) -> set[str]:
    """Everything that a store with these checkpoints has."""
    digests = {use.digest for checkpoint in checkpoints for use in checkpoint.packs}
    return {
        DESCRIPTION,
        FINGERPRINT_KEY,
        *(manifest_name(checkpoint.id) for checkpoint in checkpoints),
        *(f"{checkpoint_directory(checkpoint.id)}/{job_label(checkpoint.job)}" for checkpoint in checkpoints),
        *(name(digest) for digest in digests for name in (pack_name, fingerprints_name)),
    }


def test_series_of_checkpoints_in_memory_can_be_read_back(tmp_path: Path) -> None:
    repository, backend = _in_memory(tmp_path)
    first, second = (store(repository, tmp_path, images) for images in (FIRST, SECOND))
    assert second.parent == first.id
    assert second.statistics.shared_pages > 300
    for number, checkpoint in enumerate((first, second)):
        assert restore_files(repository, checkpoint, tmp_path) == files_of(tmp_path / f"images-{number}")
    assert details_of(repository, first) == b"{}"
    assert repository.checkpoints() == (first, second)
    assert verify(repository).damages == ()
    assert _stored(backend) == _names((first, second))
    assert list(backend.scratch.iterdir()) == []


def test_incremental_images_are_completed_from_the_parent(tmp_path: Path) -> None:
    repository, _ = _in_memory(tmp_path)
    first = store(repository, tmp_path, FIRST)
    base = tmp_path / "base"
    base.mkdir()
    materialise_base(repository, first, base)
    images = ImageSet({"pagemap-1.img": [parent_area(5, 300), area(305, *range(700, 790))]})
    directory = write_set(tmp_path / "next", images, str(base))
    second = ingest(repository, directory, replace(described(), parent=first.id, base=base))
    pages = restore_files(repository, second, tmp_path)["pages-1.img"]
    assert pages[: 300 * 4096] == files_of(tmp_path / "images-0")["pages-1.img"][: 300 * 4096]
    assert verify(repository).damages == ()


def test_store_in_memory_keeps_tags_and_pending_checkpoints(tmp_path: Path) -> None:
    repository, backend = _in_memory(tmp_path)
    first = store(repository, tmp_path, FIRST)
    repository.tag(first.id, "good")
    assert repository.resolve("job:good") == repository.resolve("job") == first.id
    repository.untag(JobName("job"), "good")
    assert repository.tags() == ()
    with announced(repository.backend, first.job, first.created, None, alone=True):
        assert [pending.lost for pending in repository.pending()] == [None]
    assert repository.pending() == ()
    assert _stored(backend) == _names((first,))


def test_gc_removes_unreferenced_files(tmp_path: Path) -> None:
    repository, backend = _in_memory(tmp_path)
    first, second = (store(repository, tmp_path, images) for images in (FIRST, SECOND))
    repository.tag(first.id, "good")
    repository.remove([first.id])
    with pytest.raises(NoSuchCheckpoint):
        repository.get(first.id)
    gone = {use.digest for use in first.packs} - {use.digest for use in second.packs}
    assert set(collect_garbage(repository).packs) == gone
    repository.remove([second.id])
    assert collect_garbage(repository).bytes > 0
    assert backend.files.keys() == {DESCRIPTION, FINGERPRINT_KEY}


def _damage(backend: MemoryBackend, name: str) -> None:
    content = bytearray(backend.files[name])
    content[100] ^= 1
    backend.files[name] = bytes(content)


@pytest.mark.parametrize("in_directory", [False, True])
def test_damage_is_found_and_repaired_from_another_store(in_directory: bool, tmp_path: Path) -> None:
    repository, backend = _in_memory(tmp_path)
    first, second = (store(repository, tmp_path, images) for images in (FIRST, SECOND))
    source = open_store(tmp_path) if in_directory else _in_memory(tmp_path, "other")[0]
    _copy(backend, source.backend)
    intact_files = dict(backend.files)
    damaged = (pack_name(first.packs[0].digest), manifest_name(second.id))
    for name in damaged:
        _damage(backend, name)
    with pytest.raises(IntegrityError):
        restore_files(repository, first, tmp_path)
    assert {damage.kind for damage in verify(repository).damages} == {"manifest", "pack"}
    result = repair(repository, source=source)
    assert result.now.damages == ()
    assert {damage.kind for damage in result.repaired} == {"manifest", "pack"}
    assert all(backend.files[name] == intact_files[name] for name in damaged)
    assert list(backend.scratch.iterdir()) == []


def _copy(here: MemoryBackend, there: Backend) -> None:
    for name, content in here.files.items():
        there.put(name, content, "copy")


def test_exclusive_lock_of_a_store_in_memory_waits_for_the_shared_one(tmp_path: Path) -> None:
    repository, backend = _in_memory(tmp_path)
    other = Repository(backend, read_store_id(backend))
    with repository.shared(), pytest.raises(StoreLocked), other.exclusive(timeout=0):
        pass
    with repository.exclusive(), repository.shared(), pytest.raises(StoreLocked), other.shared(timeout=0):
        pass
    with other.exclusive(timeout=0):
        pass
