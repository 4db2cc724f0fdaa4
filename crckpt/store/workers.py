"""The threads that read, fingerprint, compress and unpack: as many as there are cores that we may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def workers() -> Iterator[Executor]:
    """They have ended when the block is left; what they had not begun is dropped."""
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
