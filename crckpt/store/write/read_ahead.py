"""Read pages of sources, and compute their fingerprints, in the threads of a pool before they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from crckpt.model import PAGE_SIZE
from crckpt.store.format.extents import Bytes, Numbers
from crckpt.store.workers import wait_for_result
from crckpt.store.write.examine_pages import ExaminedPages, examine_pages
from crckpt.store.write.imageset import BATCH_PAGES, Source

# One to work on, and one more for each of two threads.
_BUFFERS: Final = 3

FindExamined: TypeAlias = Callable[[str, int], ExaminedPages | None]
"""From the name of an image, and the number of a page in it, to what is known of the batch that begins there."""


class Batch(Struct, frozen=True):
    """Consecutive pages of a source: their numbers, their contents, and what is known of these."""

    source: Source
    first: Numbers
    pages: Bytes
    examined: ExaminedPages


def read_ahead(sources: Iterable[Source], key: bytes, pool: Executor, find: FindExamined) -> Iterator[Batch]:
    """Yield all pages of the sources, in order. What `find` finds is not examined again.

    A batch's contents are valid until the next one: reused memory costs no page faults. Raises IntegrityError if files
    shrink.
    """
    buffers = [np.empty((BATCH_PAGES, PAGE_SIZE), np.uint8) for _ in range(_BUFFERS)]
    waiting: deque[Future[Batch]] = deque()
    parts = ((source, start) for source in sources for start in range(0, source.pages, BATCH_PAGES))
    for number, (source, start) in enumerate(parts):
        pages = buffers[number % _BUFFERS][: source.pages - start]
        waiting.append(pool.submit(_read_batch, source, start, pages, key, find))
        if len(waiting) == _BUFFERS:
            yield wait_for_result(waiting.popleft())
    while waiting:
        yield wait_for_result(waiting.popleft())


def _read_batch(source: Source, start: int, pages: Bytes, key: bytes, find: FindExamined) -> Batch:
    first = source.read(start, pages)
    # While CRIU wrote, whole batches of a file were examined: only in such a source are they the same pages.
    is_known = len(pages) == BATCH_PAGES and source.is_one_image
    examined = find(source.name, start) if is_known else None
    return Batch(source, first, pages, examined or examine_pages(pages, key))
