"""Work that leaves the cores that processes run on to those."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from crckpt.host import proc


@contextmanager
def left_to(pids: Iterable[int]) -> Iterator[None]:
    """This thread, and those that it starts, stay off the cores that threads of these processes are running on.

    They do if half of ours, or more, are left: on fewer our work would take much longer, and slow the processes down
    for as long. A nice value would not do: it does not count between sessions (sched(7), autogroup).
    """
    ours = os.sched_getaffinity(0)
    left = ours - proc.cores_in_use(pids)
    if left == ours or 2 * len(left) < len(ours):
        yield
        return
    with suppress(OSError):  # somebody has just given us others
        os.sched_setaffinity(0, left)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, ours)
