"""Keep a data file open; at SIGUSR1 write NEW! to its begin: `write_on_signal.py FILE write|map`."""

from __future__ import annotations

import mmap
import os
import signal
import sys

path, how = sys.argv[1:]
file = os.open(path, os.O_RDWR)
area = mmap.mmap(file, 4096)


def write(_number: int, _frame: object) -> None:
    """Write without moving the file's position."""
    if how == "map":
        area[:4] = b"NEW!"
    else:
        os.pwrite(file, b"NEW!", 0)


signal.signal(signal.SIGUSR1, write)
while True:
    signal.pause()
