"""Keep crckpt's work off the cores that a tree runs on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from crckpt.host import proc


@contextmanager
def cores_left_to(pids: Iterable[int]) -> Iterator[None]:
    """Keep this thread, and those that it starts, off the cores that threads of these processes run on now.

    Nothing changes if the system does not allow it.
    """
    # Not if that leaves less than half of our cores: our work would take much longer, and slow the
    # processes down for as long.
    ours = os.sched_getaffinity(0)
    try:
        # A nice value has no effect between sessions (sched(7), autogroup).
        with suppress(OSError):
            left = ours - proc.cores_in_use(pids)
            if 2 * len(left) >= len(ours):
                os.sched_setaffinity(0, left)
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, ours)
