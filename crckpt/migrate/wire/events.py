"""Events that a thread can wait for together with descriptors."""

from __future__ import annotations

import os
import select
from contextlib import suppress


class Event:
    """Something that happened; `poll` waits for it. Unlike a lock, a signal's exception leaves it as it is."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        """Set it: it has happened."""
        os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Clear it: it has not happened."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def wait(self, seconds: float, other: int | None = None, mask: int = select.POLLIN) -> bool:
        """Wait for it at most `seconds`, or until `mask` holds of the descriptor `other`; return whether any does."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        if other is not None:
            poll.register(other, mask)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def is_set(self) -> bool:
        """Return whether it has happened."""
        return self.wait(0)

    def close(self) -> None:
        """Close its descriptor: nobody waits for it any more."""
        os.close(self.descriptor)
