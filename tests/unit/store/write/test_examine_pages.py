"""Zero pages, and the examination of images while they grow."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from smaller_bounds import smaller_bounds

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE
from crckpt.store.format.extents import Bytes
from crckpt.store.write import examine_pages as examining
from crckpt.store.write.examine_pages import (
    ExaminedPages,
    examine_growing_images,
    examine_pages,
    examine_written_image,
)
from crckpt.store.write.imageset import BATCH_PAGES

KEY = bytes(32)
WITHIN_S = 60.0


def as_pages(content: bytes | bytearray) -> Bytes:
    return np.frombuffer(content, np.uint8).reshape(-1, PAGE_SIZE)


@pytest.mark.parametrize("place", [0, 7, 8, 511, 512, 2049, PAGE_SIZE - 1])
def test_page_with_one_nonzero_byte_is_not_zero(place: int) -> None:
    content = bytearray(300 * PAGE_SIZE)
    for page in (0, 127, 128, 299):
        content[page * PAGE_SIZE + place] = 1
    assert examine_pages(as_pages(content), KEY).filled.tolist() == [0, 127, 128, 299]


def test_equal_pages_have_equal_fingerprints_under_one_key() -> None:
    some = random.Random(1).randbytes(PAGE_SIZE)
    content = some + bytes(PAGE_SIZE) + some + some[:-1] + b"x"
    first, second, third = examine_pages(as_pages(content), KEY).prints.tolist()
    assert first == second != third
    assert first not in examine_pages(as_pages(content), bytes(31) + b"x").prints.tolist()


def test_whole_batches_of_a_complete_image_are_examined(tmp_path: Path) -> None:
    content = random.Random(2).randbytes(PAGE_SIZE) * (2 * BATCH_PAGES + 1)
    (tmp_path / "pages-1.img").write_bytes(content)
    found = examine_written_image(tmp_path / "pages-1.img", KEY)
    assert list(found) == [("pages-1.img", 0), ("pages-1.img", BATCH_PAGES)]
    batch = examine_pages(as_pages(content[: BATCH_PAGES * PAGE_SIZE]), KEY)
    assert all((some.prints == batch.prints).all() for some in found.values())


def test_image_smaller_than_a_batch_is_left_to_the_commit(tmp_path: Path) -> None:
    (tmp_path / "pages-1.img").write_bytes(bytes(PAGE_SIZE * (BATCH_PAGES - 1)))
    assert examine_written_image(tmp_path / "pages-1.img", KEY) == {}


class GrowingImages:
    """A directory that is examined in a thread."""

    def __init__(self, images: Path) -> None:
        self.found: dict[tuple[str, int], ExaminedPages] = {}
        self.failure: BaseException | None = None
        self._is_over = threading.Event()
        self._images = images
        self._thread = threading.Thread(target=self._examine)
        self._thread.start()

    def _examine(self) -> None:
        try:
            examine_growing_images(self._images, KEY, self._is_over, self.found)
        except (OSError, IntegrityError) as error:
            self.failure = error

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + WITHIN_S
        while len(self.found) < count and self._thread.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()


def test_growing_image_is_examined_in_whole_batches(tmp_path: Path) -> None:
    batch = random.Random(2).randbytes(PAGE_SIZE) * BATCH_PAGES
    growing = GrowingImages(tmp_path)
    try:
        with (tmp_path / "pages-1.img").open("ab", buffering=0) as image:
            image.write(batch[:-1])
            (tmp_path / "pages-2.img").write_bytes(batch + batch)
            growing.wait(2)
            assert sorted(growing.found) == [("pages-2.img", 0), ("pages-2.img", BATCH_PAGES)]
            image.write(batch[-1:])
            growing.wait(3)
        (tmp_path / "core-1.img").write_bytes(batch)
    finally:
        growing.end()
    assert growing.failure is None
    assert sorted(growing.found) == [("pages-1.img", 0), ("pages-2.img", 0), ("pages-2.img", BATCH_PAGES)]
    expected = examine_pages(as_pages(batch), KEY)
    for examined in growing.found.values():
        assert examined.prints.tolist() == expected.prints.tolist()
        assert examined.filled.tolist() == list(range(BATCH_PAGES))


def test_images_of_another_user_are_not_examined(tmp_path: Path) -> None:
    """The other user could change the images before they are stored."""
    if os.geteuid():
        pytest.skip("only root can give a file away")
    (tmp_path / "pages-1.img").write_bytes(bytes(PAGE_SIZE) * BATCH_PAGES)
    os.chown(tmp_path / "pages-1.img", 65534, 65534)
    growing = GrowingImages(tmp_path)
    growing.wait(1)
    growing.end()
    assert growing.failure is not None
    assert growing.found == {}


def test_number_of_examined_batches_is_limited(tmp_path: Path) -> None:
    with (tmp_path / "pages-1.img").open("wb") as image:
        image.truncate(5 * BATCH_PAGES * PAGE_SIZE)
    with smaller_bounds(examining, _MOST_BATCHES=2):
        growing = GrowingImages(tmp_path)
        growing.wait(3)
        growing.end()
    assert len(growing.found) == 2
