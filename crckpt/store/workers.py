"""The threads that read, fingerprint, compress and unpack: one for each core that this process may use."""

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
    """Threads that an interrupt of the main thread does not disturb."""

    def __init__(self, size: int) -> None:
        """`size` is the number of threads."""
        super().__init__(size)
        self.size = size

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Let a thread do this; `wait_for_result` returns its result."""
        # Raised inside of the executor, an interrupt would leave one of its locks taken, for which all threads would
        # wait for ever.
        with interrupts_deferred():
            return super().submit(work, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as any executor does."""
        with interrupts_deferred():
            super().shutdown(wait, cancel_futures=cancel_futures)


@contextmanager
def workers() -> Iterator[Workers]:
    """Run threads while the block runs. At its end they have ended; tasks that had not begun are dropped."""
    # Not os.cpu_count(): a service or container may use fewer CPUs than the host has.
    pool = Workers(len(os.sched_getaffinity(0)))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def wait_for_result(future: Future[T]) -> T:
    """Return what a thread of `Workers` returns, or raise what it raises. An interrupt is raised after that."""
    with interrupts_deferred():
        return future.result()
