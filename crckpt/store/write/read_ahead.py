"""Read pages of sources, and compute their fingerprints, in the threads of a pool before they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Final

import numpy as np
from msgspec import Struct

from crckpt.model import PAGE_SIZE
from crckpt.store.fingerprints import compute_fingerprints
from crckpt.store.format.extents import Bytes, Mask, Numbers, Positions
from crckpt.store.workers import wait_for_result
from crckpt.store.write.imageset import BATCH_PAGES, Source

# One to work on, and one more for each of two threads.
_BUFFERS: Final = 3

# One of so many words of 8 bytes is tested first.
_WORDS_APART: Final = 64

# Pages that are copied to be tested as a whole: half a MiB.
_PAGES_AT_ONCE: Final = 128


class Batch(Struct, frozen=True):
    """Consecutive pages of a source: numbers, contents, which are not zero, and the fingerprints of those."""

    source: Source
    first: Numbers
    pages: Bytes
    filled: Positions
    prints: Numbers


def read_ahead(sources: Iterable[Source], key: bytes, pool: Executor) -> Iterator[Batch]:
    """Yield all pages of the sources, in order. Raises IntegrityError if files shrink.

    A batch's contents are valid until the next one: reused memory costs no page faults.
    """
    buffers = [np.empty((BATCH_PAGES, PAGE_SIZE), np.uint8) for _ in range(_BUFFERS)]
    waiting: deque[Future[Batch]] = deque()
    parts = ((source, start) for source in sources for start in range(0, source.pages, BATCH_PAGES))
    for number, (source, start) in enumerate(parts):
        pages = buffers[number % _BUFFERS][: source.pages - start]
        waiting.append(pool.submit(_read_batch, source, start, pages, key))
        if len(waiting) == _BUFFERS:
            yield wait_for_result(waiting.popleft())
    while waiting:
        yield wait_for_result(waiting.popleft())


def _read_batch(source: Source, start: int, pages: Bytes, key: bytes) -> Batch:
    first = source.read(start, pages)
    filled = _find_nonzero(pages)
    return Batch(source, first, pages, filled, compute_fingerprints(pages, filled, key))


def _find_nonzero(pages: Bytes) -> Positions:
    """Find the pages that are not all zero."""
    words = pages.view(np.uint64)
    # A few words tell for nearly all pages, in a quarter of the time that all words take.
    is_filled: Mask = np.bitwise_or.reduce(words[:, ::_WORDS_APART], axis=1) != 0
    others = np.flatnonzero(~is_filled)
    for start in range(0, len(others), _PAGES_AT_ONCE):
        some = others[start : start + _PAGES_AT_ONCE]
        is_filled[some] = np.bitwise_or.reduce(words[some], axis=1) != 0
    return np.flatnonzero(is_filled)
