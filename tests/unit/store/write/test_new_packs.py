"""Packs that are written one after the other: where each page lies, and when it is durable."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from own_process import descriptors

from crckpt.model import PAGE_SIZE
from crckpt.store.backend.local import Backend
from crckpt.store.fingerprints import compute_fingerprints
from crckpt.store.format.extents import Bytes
from crckpt.store.format.pack import FRAME_PAGES, MOST_FRAMES, open_pack
from crckpt.store.workers import workers
from crckpt.store.write.new_packs import NewPacks, pages_in_a_pack

KEY = bytes(32)
MIB = 1 << 20
LIMIT = 2 * FRAME_PAGES


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with workers() as found:
        yield found


def some_pages(count: int) -> Bytes:
    return np.frombuffer(random.Random(4).randbytes(count * PAGE_SIZE), np.uint8).reshape(-1, PAGE_SIZE)


def add(packs: NewPacks, pages: Bytes) -> None:
    rows = np.arange(len(pages))
    packs.add(pages, rows, compute_fingerprints(pages, rows, KEY))


def test_every_page_is_in_the_pack_where_its_extent_says(tmp_path: Path, pool: Executor) -> None:
    pages = some_pages(2 * LIMIT + 5)
    before = descriptors()
    with closing(NewPacks(tmp_path, pool, None, LIMIT, KEY)) as packs:
        for part in (pages[:3], pages[3:100], pages[100:100], pages[100:]):
            add(packs, part)
        assert packs.pages == len(pages)
        finished = packs.finish()
        which, places = packs.locations(np.arange(len(pages)))
    assert descriptors() == before
    backend = Backend(tmp_path)
    opened = [open_pack(backend, pack.digest, pack.path.name) for pack in finished]
    assert [pack.pages for pack in opened] == [LIMIT, LIMIT, 5]
    for page, number, place in zip(pages, which.tolist(), places.tolist(), strict=True):
        frame, at = divmod(place, FRAME_PAGES)
        content = opened[number].read_frame(frame)
        assert content[at * PAGE_SIZE : (at + 1) * PAGE_SIZE] == page.tobytes()


def test_commit_without_new_pages_makes_no_pack(tmp_path: Path, pool: Executor) -> None:
    with closing(NewPacks(tmp_path, pool, None, LIMIT, KEY)) as packs:
        assert packs.finish() == ()
    assert list(tmp_path.iterdir()) == []


def test_pages_that_fill_a_pack_exactly_do_not_start_another(tmp_path: Path, pool: Executor) -> None:
    with closing(NewPacks(tmp_path, pool, None, LIMIT, KEY)) as packs:
        add(packs, some_pages(LIMIT))
        (finished,) = packs.finish()
    assert finished.pages == LIMIT


def test_pack_that_cannot_be_created_is_an_error(tmp_path: Path, pool: Executor) -> None:
    (tmp_path / "pack-0").write_text("something else")
    before = descriptors()
    with closing(NewPacks(tmp_path, pool, None, LIMIT, KEY)) as packs:
        add(packs, some_pages(5))
        with pytest.raises(FileExistsError):
            packs.finish()
    assert descriptors() == before


def test_failure_to_write_packs_leaves_no_file_open(tmp_path: Path, pool: Executor) -> None:
    before = descriptors()
    with suppress(KeyError), closing(NewPacks(tmp_path, pool, None, LIMIT, KEY)) as packs:
        # Enough that frames are compressed and written.
        add(packs, some_pages(LIMIT // 2 + 64 * FRAME_PAGES))
        assert list(tmp_path.iterdir()) != []
        raise KeyError
    assert descriptors() == before


@pytest.mark.parametrize(
    ("size", "pages"),
    [
        (0, 16 * MIB // PAGE_SIZE),
        (256 * MIB, 16 * MIB // PAGE_SIZE),
        (512 * MIB, 32 * MIB // PAGE_SIZE),
        (512 * MIB + 1, 32 * MIB // PAGE_SIZE + FRAME_PAGES),
        (1 << 60, MOST_FRAMES * FRAME_PAGES),
    ],
)
def test_pack_of_a_large_checkpoint_holds_a_sixteenth_of_it_in_whole_frames(size: int, pages: int) -> None:
    assert pages_in_a_pack(size) == pages
