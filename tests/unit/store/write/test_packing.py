"""A page is stored once: what each way of being known saves, and what happens when nothing is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from failing_disk import failing
from image_sets import (
    Area,
    ImageSet,
    area,
    described,
    files_of,
    flip,
    open_store,
    packs,
    page,
    restore_files,
    store,
    write_set,
)

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE, PackId
from crckpt.store import Checkpoint, Repository, ingest, verify
from crckpt.store.format.pack import open_pack


def test_equal_pages_of_one_checkpoint_are_stored_once(tmp_path: Path) -> None:
    images = ImageSet(
        {"pagemap-100.img": [area(10, 1, 2, 1)], "pagemap-102.img": [area(50, 2, 1)]}, {"ghost-file-1.img": page(2)}
    )
    statistics = store(open_store(tmp_path), tmp_path, images).statistics
    # Two pages of memory, two page maps, details and index.
    assert statistics.new_bytes == (2 + 2 + 1 + 1) * PAGE_SIZE
    assert statistics.shared_pages == 4


def test_without_dedup_all_but_zero_pages_are_stored(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    directory = write_set(tmp_path / "set", ImageSet({"pagemap-100.img": [area(10, 1, 0, 1, 2)]}))
    ingest(repository, directory, described())
    again = ingest(repository, directory, described(), dedup=False)
    # Three pages of memory, page map, details and index.
    assert again.statistics.new_bytes == (3 + 1 + 1 + 1) * PAGE_SIZE
    assert again.statistics.shared_pages == 0
    assert restore_files(repository, again, tmp_path) == files_of(directory)


def test_zero_pages_are_not_stored(tmp_path: Path) -> None:
    statistics = store(open_store(tmp_path), tmp_path, ImageSet({"pagemap-100.img": [area(10, 0, 0, 1, 0)]})).statistics
    assert (statistics.zero_pages, statistics.pages) == (3, 6)
    assert statistics.new_bytes == (1 + 1 + 1 + 1) * PAGE_SIZE


def test_page_with_one_nonzero_byte_is_stored(tmp_path: Path) -> None:
    places = (0, 7, 8, 63 * 8 + 5, 64 * 8 - 1, 64 * 8, 65 * 8, 2001, PAGE_SIZE - 1)
    pages = tuple(bytes(place) + b"1" + bytes(PAGE_SIZE - place - 1) for place in places)
    directory = write_set(tmp_path / "set", ImageSet({"pagemap-100.img": [Area(10 * PAGE_SIZE, pages)]}))
    repository = open_store(tmp_path)
    saved = ingest(repository, directory, described())
    assert saved.statistics.zero_pages == 0
    assert restore_files(repository, saved, tmp_path) == files_of(directory)


def test_checkpoint_without_new_pages_has_no_pack(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    images = ImageSet({"pagemap-100.img": [area(10, *range(500))]}, {"core-100.img": b"registers"})
    first = store(repository, tmp_path, images)
    before = packs(repository)
    second = store(repository, tmp_path, images)
    assert packs(repository) == before
    assert second.statistics.stored_bytes == second.statistics.new_bytes == 0
    assert second.packs == first.packs
    assert second.parent == first.id
    assert list((repository.root / "tmp").iterdir()) == []


def test_only_changed_pages_are_stored_wherever_they_moved(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *range(1, 2001))]}))
    changed = [*range(1, 1000), 9999, *range(1001, 2001)]
    at_the_same_place = store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *changed)]}))
    moved = store(repository, tmp_path, ImageSet({"pagemap-555.img": [area(7777, *changed)]}))
    # One page, and the index; then page map and index.
    assert at_the_same_place.statistics.new_bytes == 2 * PAGE_SIZE
    assert moved.statistics.new_bytes == 2 * PAGE_SIZE
    assert restore_files(repository, moved, tmp_path)["pages-1.img"] == b"".join(map(page, changed))


def test_without_a_search_pages_are_found_only_at_their_address(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *range(1, 201))]}))

    def store_quickly(name: str, *pages: int) -> Checkpoint:
        images = write_set(tmp_path / name, ImageSet({"pagemap-100.img": [area(10, *pages)]}))
        return ingest(repository, images, described(), searches=False)

    # One page, and the index.
    assert store_quickly("same", *range(1, 200), 9999).statistics.new_bytes == 2 * PAGE_SIZE
    moved = [*range(2, 201), 1]
    away = store_quickly("moved", *moved)
    assert away.statistics.new_bytes > 200 * PAGE_SIZE
    assert restore_files(repository, away, tmp_path)["pages-1.img"] == b"".join(map(page, moved))


def test_no_new_checkpoint_depends_on_a_damaged_pack(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    images = ImageSet({"pagemap-100.img": [area(10, *range(1, 200))]})
    first = store(repository, tmp_path, images)
    flip(packs(repository)[0], packs(repository)[0].stat().st_size - 40)
    more = ImageSet({"pagemap-100.img": [area(10, *range(1, 201))]})
    second = store(repository, tmp_path, more)
    assert not {use.digest for use in first.packs} & {use.digest for use in second.packs}
    assert verify(repository).lost == (first.id,)
    assert restore_files(repository, second, tmp_path)["pages-1.img"] == b"".join(map(page, range(1, 201)))


def _reads(repository: Repository, checkpoint: Checkpoint, base: Path) -> None:
    with pytest.raises(IntegrityError):
        restore_files(repository, checkpoint, base)


def _verifies(repository: Repository, checkpoint: Checkpoint, _base: Path) -> None:
    assert verify(repository).lost == (checkpoint.id,)


@pytest.mark.parametrize("finds", [_reads, _verifies])
def test_unreadable_sector_is_damage(tmp_path: Path, finds: Callable[[Repository, Checkpoint, Path], None]) -> None:
    """The next checkpoint is stored completely, whatever was found before."""
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *range(1, 200))]}))
    (path,) = packs(repository)
    repository = failing(repository, path, 1000)
    finds(repository, first, tmp_path)
    second = store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *range(1, 201))]}))
    assert verify(repository).lost == (first.id,)
    assert restore_files(repository, second, tmp_path)["pages-1.img"] == b"".join(map(page, range(1, 201)))


def test_unreadable_pack_is_damage(tmp_path: Path) -> None:
    """The inode of a pack is damaged: the next checkpoint does not use the pack."""
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *range(1, 200))]}))
    (path,) = packs(repository)
    repository = failing(repository, path)
    _reads(repository, first, tmp_path)
    second = store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *range(1, 201))]}))
    assert verify(repository).lost == (first.id,)
    assert restore_files(repository, second, tmp_path)["pages-1.img"] == b"".join(map(page, range(1, 201)))


def _does_nothing(_repository: Repository, _checkpoint: Checkpoint, _base: Path) -> None:
    """Whoever stores reads the index, and so the last frame."""


@pytest.mark.parametrize(
    ("frame", "finds"), [(0, _reads), (0, _verifies), (-1, _reads), (-1, _verifies), (-1, _does_nothing)]
)
def test_no_new_checkpoint_depends_on_a_damaged_frame(
    tmp_path: Path, frame: int, finds: Callable[[Repository, Checkpoint, Path], None]
) -> None:
    """The rest of the pack is intact, and the frame is not read to store the same pages again."""
    repository = open_store(tmp_path)
    first = store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *range(1, 200))]}))
    (path,) = packs(repository)
    flip(path, int(open_pack(repository.backend, PackId(path.stem)).table["offset"][frame]))
    finds(repository, first, tmp_path)
    second = store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *range(1, 201))]}))
    assert verify(repository).lost == (first.id,)
    assert restore_files(repository, second, tmp_path)["pages-1.img"] == b"".join(map(page, range(1, 201)))


def test_damaged_pack_is_repaired_by_the_same_images(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    images = ImageSet({"pagemap-100.img": [area(10, *range(1, 200))]})
    first = store(repository, tmp_path, images)
    flip(packs(repository)[0], packs(repository)[0].stat().st_size - 40)
    second = store(repository, tmp_path, images, described("other"))
    assert first.packs == second.packs
    assert verify(repository).damages == ()


def test_manifest_counts_the_used_pages_of_each_pack(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *range(1, 201))]}))
    second = store(repository, tmp_path, ImageSet({"pagemap-100.img": [area(10, *range(1, 66), 500)]}))
    old, new = second.packs
    # Of the old pack 65 pages of memory and the details were in use. Beside a page, page map and index, three of them
    # are stored again, those from the least used frames first: the details, the 65th page, and one of the others.
    assert (old.frames, old.pages) == (1, 63)
    assert (new.frames, new.pages) == (1, 3 + 3)
    assert (second.statistics.new_bytes, second.statistics.copied_bytes) == (3 * PAGE_SIZE, 3 * PAGE_SIZE)


def test_pages_are_copied_forward_wherever_they_are_in_a_process(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    content = [number.to_bytes(8, "little") * 512 for number in range(1, 20_001)]
    # The last of five packs, which begins with page 16,383, keeps a twentieth of its pages, and the details.
    changed = [each if at < 16_400 or at % 20 == 0 else each[::-1] for at, each in enumerate(content)]
    for some in (content, changed):
        images = ImageSet({"pagemap-100.img": [Area(PAGE_SIZE, tuple(some))]})
        checkpoint = store(repository, tmp_path, images)
    assert checkpoint.statistics.copied_bytes == (16_400 - 16_383 + 180 + 1) * PAGE_SIZE
    assert restore_files(repository, checkpoint, tmp_path)["pages-1.img"] == b"".join(changed)
