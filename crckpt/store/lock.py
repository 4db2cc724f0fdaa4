"""The store's lock, which one process can hold several times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from crckpt.host.steps import limit
from crckpt.store.backend.protocol import Backend

TIMEOUT_S: Final = limit("CRCKPT_LOCK_S", 10)


class StoreLock:
    """Held shared to read or add, and alone to remove. A process may hold it several times, nested."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._depth = 0
        self._alone = False

    @contextmanager
    def held(self, *, alone: bool, timeout: float = TIMEOUT_S) -> Iterator[None]:
        """Hold the lock for the block. Raises StoreLocked if others have it for `timeout` seconds."""
        if self._depth == 0:
            with self._backend.locked(alone=alone, timeout=timeout):
                self._alone = alone
                try:
                    yield from self._count_depth()
                finally:
                    self._alone = False
            return
        if alone and not self._alone:
            # It would wait for itself: flock(2) locks of two descriptors exclude each other in one process, too.
            raise RuntimeError("the store's lock is held shared; it cannot be had alone inside that")
        yield from self._count_depth()

    def _count_depth(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
