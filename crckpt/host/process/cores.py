"""Work that leaves the cores that processes run on to those."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from crckpt.host import proc


@contextmanager
def cores_left_to(pids: Iterable[int]) -> Iterator[None]:
    """This thread, and those that it starts, stay off the cores that threads of these processes run on as it begins.

    They do if half of ours, or more, are left: on fewer our work would take much longer, and slow the processes down
    for as long. A nice value would not do: it does not count between sessions (sched(7), autogroup). Where the system
    lets us not look, or not choose, nothing changes.
    """
    ours = os.sched_getaffinity(0)
    try:
        with suppress(OSError):
            left = ours - proc.cores_in_use(pids)
            if 2 * len(left) >= len(ours):
                os.sched_setaffinity(0, left)
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, ours)
