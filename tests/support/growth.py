"""The growth of processor time with the input size, measured in one run, because machines differ."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import Final

TIMES: Final = 8
"""How many times larger the second input is."""
_MOST: Final = 4 * TIMES
"""Half of the 64 times of work that grows with the square of its input. What leaves a processor's cache takes twice as
long as it should.
"""
_TRIES: Final = 5
_MEASURABLE_S: Final = 0.005


def grows_linearly(prepare: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Return whether the work on an input of `size` takes at most about as many times longer as the input is larger.

    The smaller input has a TIMES-th of that size. `prepare` returns the work on an input of the size that it is given.
    """
    smaller, larger = prepare(size // TIMES), prepare(size)
    least, most = math.inf, math.inf
    for _ in range(_TRIES):
        # Other processes use caches and memory, too, so the best of several tries counts for each size.
        least, most = min(least, spend(smaller)), min(most, spend(larger))
        if most <= _MOST * least:
            return True
    return False


def spend(work: Callable[[], object]) -> float:
    """Repeat the work until it is measurable, and return the seconds of a processor for each time."""
    total, calls = 0.0, 0
    while not calls or total < _MEASURABLE_S:
        total += spend_once(work)
        calls += 1
    return total / calls


def spend_once(work: Callable[[], object]) -> float:
    """Do the work, and return the seconds of a processor that this thread spent."""
    was_enabled = gc.isenabled()
    # A collection visits all that pytest holds, at any moment.
    gc.disable()
    try:
        began = time.thread_time()
        work()
        return time.thread_time() - began
    finally:
        if was_enabled:
            gc.enable()
