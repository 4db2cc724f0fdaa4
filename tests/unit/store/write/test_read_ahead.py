"""Pages come in order, in batches, examined once, however many threads read them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pytest
from series import start_program

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE
from crckpt.store.workers import workers
from crckpt.store.write.examine_pages import ExaminedPages, examine_pages, read_ahead
from crckpt.store.write.imageset import BATCH_PAGES, Source, bytes_source, find_sources

KEY = bytes(32)


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with workers() as found:
        yield found


@pytest.fixture(scope="module")
def content() -> bytes:
    """Four batches and some pages, of which the last one is not full."""
    return random.Random(3).randbytes((4 * BATCH_PAGES + 10) * PAGE_SIZE - 5)


@pytest.fixture
def source(tmp_path: Path, content: bytes) -> Source:
    """A file with this content."""
    (tmp_path / "inventory.img").write_bytes(content)
    (found,) = (found for found in find_sources(tmp_path, b"") if found.name == "inventory.img")
    return found


def test_batches_of_pages_are_read_ahead_in_order(source: Source, content: bytes, pool: Executor) -> None:
    small = bytes_source("small", source.kind, b"small")
    read: dict[str, bytes] = {"inventory.img": b"", "small": b""}
    names, firsts = [], []
    for batch in read_ahead((source, small, source), KEY, pool, {}):
        names.append(batch.source.name)
        firsts += batch.first.tolist()
        read[batch.source.name] += batch.pages.tobytes()
        assert batch.examined.prints.tolist() == examine_pages(batch.pages, KEY).prints.tolist()
    assert names == [*["inventory.img"] * 5, "small", *["inventory.img"] * 5]
    assert firsts == [*range(source.pages), 0, *range(source.pages)]
    assert read["small"] == b"small".ljust(PAGE_SIZE, b"\0")
    assert read["inventory.img"] == (content + bytes(5)) * 2


def test_batches_examined_before_are_reused(tmp_path: Path, pool: Executor) -> None:
    images = start_program(tmp_path / "images", 2 * BATCH_PAGES + 10).directory
    sources = find_sources(images, b"")
    known = ExaminedPages(np.array([3]), np.zeros(1, np.uint64))
    # The last batch was incomplete when it was examined, so the known pages are not those of the whole batch.
    examined = {("pages-1.img", start): known for start in (BATCH_PAGES, 2 * BATCH_PAGES)}
    batches = [(batch.source.name, batch.examined is known) for batch in read_ahead(sources, KEY, pool, examined)]
    assert [is_known for name, is_known in batches if name == "pages-1.img"] == [False, True, False]


def test_image_file_that_became_shorter_is_an_error_that_names_it(source: Source, pool: Executor) -> None:
    with source.files[0].open("r+b") as file:
        file.truncate(3 * BATCH_PAGES * PAGE_SIZE)
    with pytest.raises(IntegrityError, match="inventory"):
        list(read_ahead((source,), KEY, pool, {}))
