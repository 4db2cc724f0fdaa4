"""Pages of sources, read and fingerprinted by the threads of a pool before they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Final

import numpy as np
from msgspec import Struct

from crckpt.model import PAGE_SIZE
from crckpt.store.extents import Bytes, Numbers, Places
from crckpt.store.fingerprints import fingerprints
from crckpt.store.imageset import BATCH_PAGES, Source
from crckpt.store.workers import result_of

_BUFFERS: Final = 3
"""One to work on, and one ahead for each of two threads."""


class Batch(Struct, frozen=True):
    """Consecutive pages of a source: numbers, contents, which are not zero, and the fingerprints of those."""

    source: Source
    first: Numbers
    pages: Bytes
    filled: Places
    prints: Numbers


def read_ahead(sources: Iterable[Source], key: bytes, pool: Executor) -> Iterator[Batch]:
    """All pages of the sources, in order. Raises IntegrityError if files shrink.

    A batch's contents are good until the next one: memory that is used again costs no page faults.
    """
    buffers = [np.empty((BATCH_PAGES, PAGE_SIZE), np.uint8) for _ in range(_BUFFERS)]
    waiting: deque[Future[Batch]] = deque()
    parts = ((source, start) for source in sources for start in range(0, source.pages, BATCH_PAGES))
    for number, (source, start) in enumerate(parts):
        pages = buffers[number % _BUFFERS][: source.pages - start]
        waiting.append(pool.submit(_batch, source, start, pages, key))
        if len(waiting) == _BUFFERS:
            yield result_of(waiting.popleft())
    while waiting:
        yield result_of(waiting.popleft())


def _batch(source: Source, start: int, pages: Bytes, key: bytes) -> Batch:
    first = source.read(start, pages)
    filled = np.flatnonzero(np.bitwise_or.reduce(pages.view(np.uint64), axis=1))
    return Batch(source, first, pages, filled, fingerprints(pages, filled, key))
