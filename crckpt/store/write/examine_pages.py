"""Read pages, and examine their contents: which are not all zero, and the fingerprints of those."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from crckpt.host.disk.checked_files import open_checked
from crckpt.model import PAGE_SIZE
from crckpt.store.fingerprints import compute_fingerprints
from crckpt.store.format.extents import Bytes, Mask, Numbers, Positions
from crckpt.store.workers import wait_for_result
from crckpt.store.write.imageset import BATCH_PAGES, Source, read_into

# One of so many words of 8 bytes is tested first.
_WORDS_APART: Final = 64

# Pages that are copied to be tested as a whole: half a MiB.
_PAGES_AT_ONCE: Final = 128

# At 0.4 s a GB (measured), CRIU writes a batch in some 3 ms.
_LOOK_S: Final = 0.002

# The batches of 4 GiB. What is known of these takes up to 25 MiB of memory.
_MOST_BATCHES: Final = 512


# One to work on, and one more for each of two threads.
_BUFFERS: Final = 3


class ExaminedPages(Struct, frozen=True):
    """The pages of a batch that are not zero, and the fingerprints of those."""

    filled: Positions
    prints: Numbers


def examine_pages(pages: Bytes, key: bytes) -> ExaminedPages:
    """Examine pages (n by page size), with fingerprints under the store's `key`."""
    words = pages.view(np.uint64)
    # A few words tell for nearly all pages, in a quarter of the time that all words take.
    is_filled: Mask = np.bitwise_or.reduce(words[:, ::_WORDS_APART], axis=1) != 0
    others = np.flatnonzero(~is_filled)
    for start in range(0, len(others), _PAGES_AT_ONCE):
        some = others[start : start + _PAGES_AT_ONCE]
        is_filled[some] = np.bitwise_or.reduce(words[some], axis=1) != 0
    filled = np.flatnonzero(is_filled)
    return ExaminedPages(filled, compute_fingerprints(pages, filled, key))


def examine_growing_images(
    images: Path, key: bytes, is_over: threading.Event, found: MutableMapping[tuple[str, int], ExaminedPages]
) -> None:
    """Examine the pages of the images that CRIU writes there, until `is_over` is set.

    `found` gets what is known of each batch, by the name of the image and the number of the batch's first page.

    Raises OSError, IntegrityError: for images of another user, too.
    """
    buffer = np.empty((BATCH_PAGES, PAGE_SIZE), np.uint8)
    reached: dict[str, int] = {}
    while not is_over.is_set() and len(found) < _MOST_BATCHES:
        # CRIU appends to one image at a time, and never changes what it has written.
        starts = ((path, reached.get(path.name, 0)) for path in images.glob("pages-*.img"))
        whole = ((path, start) for path, start in starts if path.stat().st_size >= (start + BATCH_PAGES) * PAGE_SIZE)
        path, start = next(whole, (None, 0))
        if path is None:
            is_over.wait(_LOOK_S)
            continue
        found[path.name, start] = _examine_batch(path, start, key, buffer)
        reached[path.name] = start + BATCH_PAGES


def examine_written_image(path: Path, key: bytes) -> dict[tuple[str, int], ExaminedPages]:
    """Examine the whole batches of an image that is complete. Returns and raises what `examine_growing_images` does."""
    buffer = np.empty((BATCH_PAGES, PAGE_SIZE), np.uint8)
    starts = range(0, path.stat().st_size // PAGE_SIZE - BATCH_PAGES + 1, BATCH_PAGES)
    return {(path.name, start): _examine_batch(path, start, key, buffer) for start in starts}


def _examine_batch(path: Path, start: int, key: bytes, buffer: Bytes) -> ExaminedPages:
    """Examine the batch that begins with the `start`-th page; `buffer` has room for it."""
    # Of root or ours only. A CRIU that runs as the tree's user leaves its images to that user, who could change
    # them before they are read again. Then these fingerprints would make different pages equal.
    descriptor = open_checked(path)
    try:
        read_into(descriptor, path.name, start * PAGE_SIZE, buffer.reshape(-1).data)
    finally:
        os.close(descriptor)
    return examine_pages(buffer, key)


Examined: TypeAlias = Mapping[tuple[str, int], ExaminedPages]
"""By the name of an image, and the number of a page in it: what is known of the batch that begins there."""


class Batch(Struct, frozen=True):
    """Consecutive pages of a source: their numbers, their contents, and what is known of these."""

    source: Source
    first: Numbers
    pages: Bytes
    examined: ExaminedPages


def read_ahead(sources: Iterable[Source], key: bytes, pool: Executor, examined: Examined) -> Iterator[Batch]:
    """Yield all pages of the sources, in order. What was `examined` is not examined again.

    A batch's contents are valid until the next one: reused memory costs no page faults. Raises IntegrityError if files
    shrink.
    """
    buffers = [np.empty((BATCH_PAGES, PAGE_SIZE), np.uint8) for _ in range(_BUFFERS)]
    waiting: deque[Future[Batch]] = deque()
    parts = ((source, start) for source in sources for start in range(0, source.pages, BATCH_PAGES))
    for number, (source, start) in enumerate(parts):
        pages = buffers[number % _BUFFERS][: source.pages - start]
        waiting.append(pool.submit(_read_batch, source, start, pages, key, examined))
        if len(waiting) == _BUFFERS:
            yield wait_for_result(waiting.popleft())
    while waiting:
        yield wait_for_result(waiting.popleft())


def _read_batch(source: Source, start: int, pages: Bytes, key: bytes, examined: Examined) -> Batch:
    first = source.read(start, pages)
    # While CRIU wrote, whole batches of a file were examined: only in such a source are they the same pages.
    is_known = len(pages) == BATCH_PAGES and source.is_one_image
    found = examined.get((source.name, start)) if is_known else None
    return Batch(source, first, pages, found or examine_pages(pages, key))
