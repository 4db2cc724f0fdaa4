"""Pages that are examined while CRIU still writes them are stored as if they had been examined later."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from image_sets import (
    Area,
    ImageSet,
    area,
    described,
    files_of,
    open_store,
    page,
    parent_area,
    restore_files,
    write_set,
)
from series import ADDRESS, some_pages, start_program

from crckpt.model import PAGE_SIZE
from crckpt.store import Preparation, ingest
from crckpt.store.write.imageset import BATCH_PAGES

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core nothing is examined early")
PAGES = "pages-1.img"
NOBODY = 65534
WITHIN_S = 60.0


@contextmanager
def running(preparation: Preparation) -> Iterator[None]:
    thread = threading.Thread(target=preparation.run)
    thread.start()
    try:
        yield
    finally:
        preparation.end()
        thread.join()


def wait_until_examined(preparation: Preparation, start: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    while (PAGES, start) not in preparation.examined:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@needs_two_cores
def test_growing_image_is_stored_completely(tmp_path: Path) -> None:
    """A second checkpoint without a preparation finds all pages of the image."""
    repository = open_store(tmp_path)
    images = start_program(tmp_path / "images", 2 * BATCH_PAGES + 100).directory
    content = bytearray((images / PAGES).read_bytes())
    content[5 * PAGE_SIZE : 9 * PAGE_SIZE] = bytes(4 * PAGE_SIZE)
    content[-PAGE_SIZE:] = content[:PAGE_SIZE]
    half = (BATCH_PAGES + 10) * PAGE_SIZE
    (images / PAGES).write_bytes(content[:half])
    preparation = Preparation(repository, images)
    with running(preparation):
        wait_until_examined(preparation, 0)
        assert (PAGES, BATCH_PAGES) not in preparation.examined
        with (images / PAGES).open("ab") as file:
            file.write(content[half:])
        wait_until_examined(preparation, BATCH_PAGES)
    checkpoint = ingest(repository, images, described(), preparation=preparation)
    assert (checkpoint.statistics.zero_pages, checkpoint.statistics.shared_pages) == (4, 1)
    assert restore_files(repository, checkpoint, tmp_path) == files_of(images)
    assert ingest(repository, images, described()).statistics.new_bytes == 0


@needs_two_cores
def test_image_that_leaves_pages_to_its_parent_is_stored_completely(tmp_path: Path) -> None:
    """The pages of such an image have other numbers in the file than in the memory of the process."""
    repository = open_store(tmp_path)
    write_set(tmp_path / "1", ImageSet({"pagemap-1.img": [area(ADDRESS // PAGE_SIZE, 1, 2, 3)]}))
    own = Area(ADDRESS + 3 * PAGE_SIZE, tuple(some_pages(start_program(tmp_path / "x", 1).rng, BATCH_PAGES)))
    later = Area(own.address + BATCH_PAGES * PAGE_SIZE, (page(7),))
    maps = {"pagemap-1.img": [parent_area(ADDRESS // PAGE_SIZE, 3), own, later]}
    images = write_set(tmp_path / "2", ImageSet(maps), "../1")
    preparation = Preparation(repository, images)
    with running(preparation):
        wait_until_examined(preparation, 0)
    checkpoint = ingest(repository, images, described(), preparation=preparation)
    all_pages = restore_files(repository, checkpoint, tmp_path)[PAGES]
    assert all_pages == b"".join((page(1), page(2), page(3), *own.pages, page(7)))
    assert ingest(repository, images, described()).statistics.new_bytes == 0


@needs_two_cores
def test_pages_of_a_parent_loaded_in_advance_are_found(tmp_path: Path) -> None:
    """Pages of the parent are found as without a preload, but only those of the named parent."""
    repository = open_store(tmp_path)
    images = start_program(tmp_path / "images", BATCH_PAGES).directory
    parent = ingest(repository, images, described())
    preparations = [Preparation(repository, images, parent.id) for _ in range(2)]
    for preparation in preparations:
        with running(preparation):
            wait_until_examined(preparation, 0)
    known = preparations[0].take_known(parent)
    assert known is not None
    assert int(known.starts[-1]) >= BATCH_PAGES
    assert preparations[0].take_known(parent) is None
    second = ingest(repository, images, described(), searches=False, preparation=preparations[1])
    assert second.statistics.shared_pages == second.statistics.pages
    other = Preparation(repository, images, parent.id)
    with running(other):
        wait_until_examined(other, 0)
    assert other.take_known(repository.checkpoints()[-1]) is None


@needs_two_cores
def test_images_of_another_user_are_not_read_before_the_commit(tmp_path: Path) -> None:
    """The other user could change the images before they are stored, and make different pages equal for the store."""
    images = start_program(tmp_path / "images", BATCH_PAGES).directory
    for path in images.iterdir():
        os.chown(path, NOBODY, NOBODY)
    preparation = Preparation(open_store(tmp_path), images)
    # `run` returns without a request to stop.
    preparation.run()
    assert (PAGES, 0) not in preparation.examined
