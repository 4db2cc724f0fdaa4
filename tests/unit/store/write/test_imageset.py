"""Incremental sets become complete; sets that contradict themselves are refused, and nothing of them stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from image_sets import (
    ImageSet,
    area,
    described,
    files_of,
    open_store,
    packs,
    page,
    parent_area,
    restore_files,
    write_set,
)

from crckpt.errors import IntegrityError
from crckpt.images.pagemap import PRESENT, Entry, PageMap, read_pagemap, write_pagemap
from crckpt.images.wire import VARINT, encode
from crckpt.store import ingest, verify

MAP = "pagemap-100.img"


def test_pages_of_earlier_image_sets_are_found(tmp_path: Path) -> None:
    write_set(
        tmp_path / "1", ImageSet({MAP: [area(10, *range(1, 9)), area(100, 20)], "pagemap-shmem-3.img": [area(0, 7)]})
    )
    middle = ImageSet(
        {"pagemap-shmem-3.img": [parent_area(0, 1)], MAP: [parent_area(10, 4), area(14, 50, 51), parent_area(16, 2)]}
    )
    write_set(tmp_path / "2", middle, "../1")
    last = ImageSet({MAP: [area(9, 60), parent_area(11, 6), area(17, 0)], "pagemap-shmem-3.img": [parent_area(0, 1)]})
    write_set(tmp_path / "3", last, "../2")
    repository = open_store(tmp_path)
    checkpoint = ingest(repository, tmp_path / "3", described())
    files = restore_files(repository, checkpoint, tmp_path)
    assert files["pages-1.img"] == b"".join(map(page, (60, 2, 3, 4, 50, 51, 7, 0)))
    assert files["pages-2.img"] == page(7)
    entries = read_pagemap(files[MAP]).entries
    assert entries == (Entry(9 * 4096, 1, PRESENT), Entry(11 * 4096, 7, PRESENT))
    assert "parent" not in files
    assert verify(repository).damages == ()


def test_pages_are_found_in_sets_of_many_batches(tmp_path: Path) -> None:
    before = [area(10, *range(1, 2501)), area(9000, *range(3001, 5501))]
    write_set(tmp_path / "1", ImageSet({MAP: before}))
    after = [area(9, 60), parent_area(11, 2499), area(6000, *range(6000, 6100)), parent_area(9001, 2499)]
    write_set(tmp_path / "2", ImageSet({MAP: after, "pagemap-shmem-3.img": [area(0, *range(1, 50))]}), "../1")
    repository = open_store(tmp_path)
    files = restore_files(repository, ingest(repository, tmp_path / "2", described()), tmp_path)
    expected = (60, *range(2, 2501), *range(6000, 6100), *range(3002, 5501))
    assert files["pages-1.img"] == b"".join(map(page, expected))
    assert files["pages-2.img"] == b"".join(map(page, range(1, 50)))


def test_image_set_that_needs_no_parent_pages_is_complete(tmp_path: Path) -> None:
    images = write_set(tmp_path / "2", ImageSet({MAP: [area(1, 1)]}), "../gone")
    repository = open_store(tmp_path)
    assert restore_files(repository, ingest(repository, images, described()), tmp_path) == files_of(images)


def test_first_of_several_parent_pages_with_one_address_is_used_as_in_criu(tmp_path: Path) -> None:
    write_set(tmp_path / "1", ImageSet({MAP: [area(10, 1, 2), area(11, 3, 4)]}))
    write_set(tmp_path / "2", ImageSet({MAP: [parent_area(10, 3)]}), "../1")
    repository = open_store(tmp_path)
    checkpoint = ingest(repository, tmp_path / "2", described())
    assert restore_files(repository, checkpoint, tmp_path)["pages-1.img"] == page(1) + page(2) + page(4)


def _parent_gone(base: Path) -> Path:
    return write_set(base / "2", ImageSet({MAP: [parent_area(1, 1)]}), "../gone")


def _no_parent(base: Path) -> Path:
    return write_set(base / "2", ImageSet({MAP: [parent_area(1, 1)]}))


def _loop(base: Path) -> Path:
    write_set(base / "1", ImageSet({MAP: [parent_area(1, 1)]}), "../2")
    return write_set(base / "2", ImageSet({MAP: [parent_area(1, 1)]}), "../1")


def _not_in_parent(base: Path) -> Path:
    write_set(base / "1", ImageSet({MAP: [area(1, 1, 2)]}))
    return write_set(base / "2", ImageSet({MAP: [parent_area(2, 2)]}), "../1")


def _more_than_parent(base: Path) -> Path:
    write_set(base / "1", ImageSet({MAP: [area(1, 1, 2)]}))
    return write_set(base / "2", ImageSet({MAP: [parent_area(1, 1 << 40)]}), "../1")


def _process_not_in_parent(base: Path) -> Path:
    write_set(base / "1", ImageSet({"pagemap-7.img": [area(1, 1)]}))
    return write_set(base / "2", ImageSet({MAP: [parent_area(1, 1)]}), "../1")


def _short(base: Path) -> Path:
    images = write_set(base / "2", ImageSet({MAP: [area(1, 1, 2)]}))
    (images / "pages-1.img").write_bytes(page(1) + page(2)[:-1])
    return images


def _long(base: Path) -> Path:
    images = write_set(base / "2", ImageSet({MAP: [area(1, 1, 2)]}))
    (images / "pages-1.img").write_bytes(page(1) * 3)
    return images


def _huge(base: Path) -> Path:
    images = write_set(base / "2", ImageSet())
    (images / MAP).write_bytes(write_pagemap(PageMap.of(1, (Entry(0, 1 << 50, PRESENT),))))
    (images / "pages-1.img").write_bytes(page(1))
    return images


def _without_pages(base: Path) -> Path:
    images = write_set(base / "2", ImageSet({MAP: [area(1, 1, 2)]}))
    (images / "pages-1.img").unlink()
    return images


def _two_maps_of_one_file(base: Path) -> Path:
    images = write_set(base / "2", ImageSet({MAP: [area(1, 1)]}))
    (images / "pagemap-7.img").write_bytes((images / MAP).read_bytes())
    return images


def _compressed(base: Path) -> Path:
    images = write_set(base / "2", ImageSet({MAP: [area(1, 1)]}))
    entry = encode([(1, VARINT, 8192), (2, VARINT, 0), (4, VARINT, 4), (5, VARINT, 1), (6, VARINT, 900)])
    (images / MAP).write_bytes((images / MAP).read_bytes() + len(entry).to_bytes(4, "little") + entry)
    return images


def _directory(base: Path) -> Path:
    images = write_set(base / "2", ImageSet({MAP: [area(1, 1)]}))
    (images / "more").mkdir()
    return images


def _link(base: Path) -> Path:
    images = write_set(base / "2", ImageSet({MAP: [area(1, 1)]}))
    (images / "core-1.img").symlink_to("/etc/passwd")
    return images


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_parent_gone, "parent does not lead to it"),
        (_no_parent, "parent does not lead to it"),
        (_loop, "leads back"),
        (_not_in_parent, "0x3000 is in no set before"),
        (_more_than_parent, "more pages than the set before"),
        (_process_not_in_parent, "pagemap-100.img is missing in"),
        (_short, "describes 2 pages, and pages-1.img holds 8191 bytes"),
        (_long, "describes 2 pages, and pages-1.img holds 12288 bytes"),
        (_huge, "pages-1.img holds 4096 bytes"),
        (_without_pages, "pages-1.img is missing"),
        (_two_maps_of_one_file, "pages-1.img also belongs to another page map"),
        (_compressed, "field 6"),
        (_directory, "more is a directory"),
        (_link, "core-1.img is a symbolic link"),
    ],
)
def test_contradictory_image_sets_are_refused_and_leave_no_file(
    make: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    repository = open_store(tmp_path)
    with pytest.raises(IntegrityError, match=words):
        ingest(repository, make(tmp_path), described())
    assert repository.checkpoints() == ()
    assert packs(repository) == []
    assert list((repository.root / "tmp").iterdir()) == []
    assert list((repository.root / "locks").iterdir()) == []
