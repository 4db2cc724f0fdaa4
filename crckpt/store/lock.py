"""The store's lock, which one process can hold several times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from crckpt.host.steps import limit
from crckpt.store.backend.protocol import Backend

TIMEOUT_S: Final = limit("CRCKPT_LOCK_S", 10)


class StoreLock:
    """Held shared by those who read or add, alone by those who remove. Holding may be nested in one process."""

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
            raise RuntimeError("the store's lock is held shared; it cannot be had alone inside that")
        yield from self._count_depth()

    def _count_depth(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
