"""Read the clock all the time. argv[1]/gap is the longest gap between two readings before the last SIGUSR1, in ms.

It has argv[2] MiB of memory, and writes a byte of it at each reading.
"""

import mmap
import os
import signal
import sys
import time
from pathlib import Path

report, beside = (Path(sys.argv[1]) / name for name in ("gap", "gap.new"))
memory = mmap.mmap(-1, int(sys.argv[2]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(os.urandom(len(memory)))
asked = True


def ask(*_: object) -> None:
    """Report at the next reading."""
    global asked
    asked = True


signal.signal(signal.SIGUSR1, ask)
longest, last, place = 0.0, time.monotonic(), 0
while True:
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    memory[place] ^= 1
    place = (place + 100 * mmap.PAGESIZE + 1) % len(memory)
    if asked:
        beside.write_text(str(longest * 1000))
        beside.rename(report)
        asked, longest, last = False, 0.0, time.monotonic()
