"""The threads that read, fingerprint, compress and unpack: as many as there are cores that we may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from crckpt.host.process.signals import interrupts_deferred

T = TypeVar("T")
P = ParamSpec("P")


class Workers(ThreadPoolExecutor):
    """Threads that an interruption of the main thread leaves as they are.

    It comes after a call: amid one it would leave a lock taken for which they wait for ever, and we for them.
    """

    def __init__(self, size: int) -> None:
        """So many threads."""
        super().__init__(size)
        self.size = size

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a thread do this; ask `wait_for_result` for what it returns."""
        with interrupts_deferred():
            return super().submit(work, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As that of any executor."""
        with interrupts_deferred():
            super().shutdown(wait, cancel_futures=cancel_futures)


@contextmanager
def workers() -> Iterator[Workers]:
    """They have ended when the block is left; what they had not begun is dropped."""
    pool = Workers(len(os.sched_getaffinity(0)))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def wait_for_result(future: Future[T]) -> T:
    """What a thread of `Workers` returns, or the exception that it raises. An interruption comes when it has."""
    with interrupts_deferred():
        return future.result()
