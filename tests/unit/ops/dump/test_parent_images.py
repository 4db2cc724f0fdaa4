"""Parent images of a round describe its pages in few entries; the pages stay where rounds have copied them."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_sets import ImageSet, area, described, files_of, open_store, page, parent_area, restore_files, write_set

from crckpt.errors import StoreUnusable
from crckpt.images.pagemap import PRESENT, Entry, read_pagemap
from crckpt.model import PAGE_SIZE
from crckpt.ops.dump.lineage import find_parent_images, write_page_maps
from crckpt.store import ingest
from crckpt.tracking.dump_basis import RoundBase

MAP = "pagemap-100.img"
FILES = {"inventory.img": b"what CRIU looks for a process in", "stats-dump": b"that it does not"}


def first_round(rounds: Path) -> RoundBase:
    """A round of four pages, which CRIU lists one by one because they were not written in order."""
    parts = (area(0x10, 1), area(0x11, 2), area(0x12, 3), area(0x20, 4))
    last = write_set(rounds / "1", ImageSet({MAP: parts}, FILES))
    write_page_maps(RoundBase(last))
    return RoundBase(last)


def test_parent_images_have_few_entries_and_no_parent(tmp_path: Path) -> None:
    first_round(tmp_path)
    last = write_set(tmp_path / "2", ImageSet({MAP: (parent_area(0x10, 1), area(0x11, 5))}, FILES), parent="maps-1")
    write_page_maps(RoundBase(last))
    found = files_of(tmp_path / "maps-2")
    assert sorted(found) == ["inventory.img", MAP]
    assert not (tmp_path / "maps-2/parent").is_symlink()
    assert found["inventory.img"] == FILES["inventory.img"]
    assert read_pagemap(found[MAP]).entries == (Entry(0x10 * PAGE_SIZE, 2, PRESENT),)


def test_pages_left_to_a_round_are_those_it_copied(tmp_path: Path) -> None:
    repository, rounds = open_store(tmp_path), tmp_path / "rounds"
    rounds.mkdir()
    base = find_parent_images(repository, first_round(rounds))
    assert (base.directory, base.rounds, base.next_round()) == (rounds / "maps-1", 1, RoundBase(rounds / "2"))
    parts = (parent_area(0x10, 1), area(0x11, 5), parent_area(0x12, 1), parent_area(0x20, 1))
    second = write_set(base.next_round().directory, ImageSet({MAP: parts}, FILES), parent=str(base.directory))
    base.link_pages(second)
    write_page_maps(RoundBase(second))

    base = find_parent_images(repository, RoundBase(second))
    left = (parent_area(0x10, 3), area(0x20, 6))
    images = write_set(tmp_path / "images", ImageSet({MAP: left}, FILES), parent=str(base.directory))
    base.link_pages(images)
    given = restore_files(repository, ingest(repository, images, described()), tmp_path)
    assert given["pages-1.img"] == page(1) + page(5) + page(3) + page(6)


@pytest.mark.parametrize("name", ["1", "maps-1"])
def test_round_with_a_missing_directory_is_refused_as_base(tmp_path: Path, name: str) -> None:
    last = first_round(tmp_path)
    (tmp_path / name).rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnusable, match="are no longer in"):
        find_parent_images(open_store(tmp_path), last)
