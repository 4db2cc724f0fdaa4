"""Extents are cut where frames end, and each frame is unpacked once for all that needs it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from image_sets import of_pages, open_store, page, store

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE
from crckpt.store.format.extents import EXTENT, ZERO, Extents
from crckpt.store.format.index import PAGES
from crckpt.store.format.pack import FRAME_PAGES, MOST_FRAMES
from crckpt.store.read.contents import Contents
from crckpt.store.read.frames import pieces_of, read_ahead, unpack

COUNT = 3 * FRAME_PAGES + 10


@pytest.fixture
def stored_pages(tmp_path: Path) -> tuple[Contents, Extents]:
    """A checkpoint in two packs: the second has a few new pages among those of the first."""
    repository = open_store(tmp_path)
    store(repository, tmp_path, of_pages(*range(1, COUNT)))
    numbers = [number if number % 50 else 1000 + number for number in range(COUNT)]
    contents = Contents(repository.backend, store(repository, tmp_path, of_pages(*numbers, 0, 0, 7)))
    (file,) = (file for file in contents.index.files if file.kind == PAGES)
    assert len(contents.checkpoint.packs) == 2
    return contents, file.extents


def fill(contents: Contents, extents: Extents) -> bytes:
    """The pages of the extents, in order."""
    counts = extents["count"].astype(np.int64)
    pieces = pieces_of(contents, "the file", extents, np.cumsum(counts) - counts)
    frames = np.zeros((len(pieces.frames) * FRAME_PAGES, PAGE_SIZE), np.uint8)
    read_ahead(contents, pieces.frames)
    unpack(contents, pieces.frames, frames, range(len(pieces.frames)))
    filled = np.zeros((int(counts.sum()), PAGE_SIZE), np.uint8)
    for which, start, count, to in zip(pieces.which, pieces.start, pieces.count, pieces.to, strict=True):
        assert 0 <= start < start + count <= FRAME_PAGES
        filled[to : to + count] = frames[which * FRAME_PAGES + start :][:count]
    # Each frame once, in the order of the packs.
    assert sorted(set(pieces.frames.tolist())) == pieces.frames.tolist()
    return filled.tobytes()


def test_pieces_of_extents_cover_all_pages_in_order(stored_pages: tuple[Contents, Extents]) -> None:
    contents, extents = stored_pages
    numbers = [number if number % 50 else 1000 + number for number in range(COUNT)]
    assert fill(contents, extents) == b"".join(map(page, [*numbers, 0, 0, 7]))


def test_extents_may_be_unordered_and_repeated(stored_pages: tuple[Contents, Extents]) -> None:
    contents, extents = stored_pages
    all_pages = fill(contents, extents)
    starts = np.cumsum(extents["count"], dtype=np.int64) - extents["count"]
    order = [*range(len(extents)), *range(len(extents))]
    random.Random(1).shuffle(order)
    wanted = (all_pages[starts[row] * PAGE_SIZE :][: int(extents["count"][row]) * PAGE_SIZE] for row in order)
    assert fill(contents, extents[order]) == b"".join(wanted)


def test_extents_may_end_at_a_frame_boundary(stored_pages: tuple[Contents, Extents]) -> None:
    contents, _ = stored_pages
    filled = fill(contents, np.array([(0, FRAME_PAGES, 0, FRAME_PAGES), (0, 1, 0, FRAME_PAGES - 1)], EXTENT))
    assert len(filled) == (FRAME_PAGES + 1) * PAGE_SIZE


def test_zero_pages_are_in_no_frame(stored_pages: tuple[Contents, Extents]) -> None:
    contents, _ = stored_pages
    assert fill(contents, np.array([(0, 5, ZERO, 0)], EXTENT)) == bytes(5 * PAGE_SIZE)


@pytest.mark.parametrize("beyond", [-1, 0, MOST_FRAMES * FRAME_PAGES])
def test_pages_missing_from_a_pack_are_damage(stored_pages: tuple[Contents, Extents], beyond: int) -> None:
    contents, _ = stored_pages
    wrong = np.array([(0, 2, 0, contents.pack(0).pages + beyond)], EXTENT)
    with pytest.raises(IntegrityError, match=f"^the file refers to pages that {contents.pack(0).name} does not have"):
        pieces_of(contents, "the file", wrong, np.zeros(1, np.int64))
