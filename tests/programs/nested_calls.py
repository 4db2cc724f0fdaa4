"""Wait three calls deep. The one argument is a descriptor, which is closed when it waits."""

import os
import signal
import sys


def innermost(marker: str) -> None:
    """Wait for ever."""
    os.close(int(sys.argv[1]))
    while marker:
        signal.pause()


def middle(depth: int) -> None:
    """Call itself, and then the innermost."""
    if depth:
        middle(depth - 1)
    else:
        innermost("swordfish")


middle(1)
