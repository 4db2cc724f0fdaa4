"""Has pages whose soft-dirty bits do not tell what was done at SIGUSR1, and says what they hold.

A huge page, if it gets one, is given back, and read: there are zeros. As much memory is moved onto other such, page
table and all. And some pages are written, all alike, and merged if the kernel merges any.

argv[1] is a directory. After each signal (SIGUSR2 does nothing) the file said-N holds how many bytes of the huge page
are not zero, how many were moved to where they were to be, how many of the others were written, and how many pages are
merged, or have been 40 s later.
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
LIBC: Final = ctypes.CDLL(None, use_errno=True)
LIBC.mremap.restype = ctypes.c_void_p


class Aligned:
    """So much memory as a huge page has, where one could be, full of one letter."""

    def __init__(self, advice: int, letter: bytes) -> None:
        self.memory = mmap.mmap(-1, 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(advice)
        place = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.begin = -place % HUGE
        self.place = place + self.begin
        self.memory[self.begin : self.begin + HUGE] = letter * HUGE

    def count(self, letter: bytes) -> int:
        """How many bytes are this one."""
        return self.memory[self.begin : self.begin + HUGE].count(letter)


def merged() -> int:
    """How many pages are."""
    path = Path("/proc/self/ksm_merging_pages")
    return int(path.read_text()) if path.exists() else 0


def main() -> None:
    """Until it is killed."""
    work = Path(sys.argv[1])
    huge = Aligned(mmap.MADV_HUGEPAGE, b"x")
    moved, onto = Aligned(mmap.MADV_NOHUGEPAGE, b"a"), Aligned(mmap.MADV_NOHUGEPAGE, b"b")
    alike = mmap.mmap(-1, ALIKE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    alike.madvise(mmap.MADV_MERGEABLE)
    for page in range(64):
        alike[page * mmap.PAGESIZE] = page + 1
    signals = (signal.SIGUSR1, signal.SIGUSR2)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    number = 0
    while True:
        held = HUGE - huge.count(b"\0"), onto.count(b"a"), alike[:].count(b"m"), merged()
        (work / "beside").write_text(" ".join(map(str, held)))
        (work / "beside").rename(work / f"said-{number}")
        number += 1
        if signal.sigwait(signals) == signal.SIGUSR1:
            huge.memory.madvise(mmap.MADV_DONTNEED, huge.begin, HUGE)
            sizes = (ctypes.c_size_t(HUGE),) * 2
            # MREMAP_MAYMOVE | MREMAP_FIXED
            assert LIBC.mremap(ctypes.c_void_p(moved.place), *sizes, 3, ctypes.c_void_p(onto.place)) == onto.place
            alike[:] = b"m" * ALIKE
            until = time.monotonic() + 40
            while merged() < 64 and Path("/sys/kernel/mm/ksm/run").read_text() == "1\n" and time.monotonic() < until:
                time.sleep(0.01)


if __name__ == "__main__":
    main()
