"""Has a huge page, if it gets one, and gives it back at SIGUSR1, and reads it then: there are zeros.

argv[1] is a directory. After each signal (SIGUSR2 does nothing) the file said-N holds how many bytes are not zero.
"""

import ctypes
import mmap
import signal
import sys
from pathlib import Path
from typing import Final

HUGE: Final = 1 << 21


def main() -> None:
    """Until it is killed."""
    work = Path(sys.argv[1])
    memory = mmap.mmap(-1, 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE
    memory[begin : begin + HUGE] = b"x" * HUGE
    signals = (signal.SIGUSR1, signal.SIGUSR2)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    number = 0
    while True:
        beside = work / "beside"
        beside.write_text(str(HUGE - memory[begin : begin + HUGE].count(0)))
        beside.rename(work / f"said-{number}")
        number += 1
        if signal.sigwait(signals) == signal.SIGUSR1:
            memory.madvise(mmap.MADV_DONTNEED, begin, HUGE)


if __name__ == "__main__":
    main()
