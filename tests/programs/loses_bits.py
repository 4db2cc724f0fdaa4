"""Has pages whose soft-dirty bits do not tell what was done at SIGUSR1, and says what they hold.

A huge page, if it gets one, is given back, and read: there are zeros. Others are written, all alike, and merged if the
kernel merges any. argv[1] is a directory. After each signal (SIGUSR2 does nothing) the file said-N holds how many bytes
of the huge page are not zero, how many of the others were written, and how many pages are merged, or have been 40 s
later.
"""

import ctypes
import mmap
import signal
import sys
import time
from pathlib import Path
from typing import Final

HUGE: Final = 1 << 21
ALIKE: Final = 64 * mmap.PAGESIZE


def merged() -> int:
    """How many pages are."""
    path = Path("/proc/self/ksm_merging_pages")
    return int(path.read_text()) if path.exists() else 0


def main() -> None:
    """Until it is killed."""
    work = Path(sys.argv[1])
    memory = mmap.mmap(-1, 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE
    memory[begin : begin + HUGE] = b"x" * HUGE
    alike = mmap.mmap(-1, ALIKE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    alike.madvise(mmap.MADV_MERGEABLE)
    for page in range(64):
        alike[page * mmap.PAGESIZE] = page + 1
    signals = (signal.SIGUSR1, signal.SIGUSR2)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    number = 0
    while True:
        held = HUGE - memory[begin : begin + HUGE].count(0), alike[:].count(b"m"), merged()
        (work / "beside").write_text(" ".join(map(str, held)))
        (work / "beside").rename(work / f"said-{number}")
        number += 1
        if signal.sigwait(signals) == signal.SIGUSR1:
            memory.madvise(mmap.MADV_DONTNEED, begin, HUGE)
            alike[:] = b"m" * ALIKE
            until = time.monotonic() + 40
            while merged() < 64 and Path("/sys/kernel/mm/ksm/run").read_text() == "1\n" and time.monotonic() < until:
                time.sleep(0.01)


if __name__ == "__main__":
    main()
