"""Pages whose soft-dirty bits do not show what was done at SIGUSR1, and a report of their content.

A huge page, if it gets one, is given back and then read: it has zeros. The same amount of memory is moved onto other
such memory, with its page table. Some pages are written in a map that was dirty as a whole because it had joined new
memory, and is not any more, because it has joined another. And some equal pages are written, and merged if the kernel
merges.

argv[1] is a directory. After each signal (SIGUSR2 does nothing) the file report-N has the number of bytes of the huge
page that are not zero, of bytes moved, of bytes written in the joined map, of bytes of the others, and of merged
pages, now or 40 s later.
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
LIBC.mremap.restype = LIBC.mmap.restype = ctypes.c_void_p


class AlignedMemory:
    """Memory of the size of a huge page, aligned like one, full of one letter."""

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


class JoinedMemory:
    """Memory that is only read, other memory above it that is written, and space above that."""

    def __init__(self) -> None:
        self.below = self._mapped(None, 5 * ALIKE, 0) + ALIKE
        self.place, self.above = self.below + ALIKE, self.below + 2 * ALIKE
        self._mapped(self.below, 2 * ALIKE, 3)
        ctypes.memset(self.below, 1, 2 * ALIKE)
        self._protect(self.below, 1)

    def join(self) -> None:
        """Join the middle first with the memory above, and after a moment of protection with that below."""
        self._mapped(self.above, ALIKE, 3)
        self._protect(self.place, 0)
        self._protect(self.place, 3)
        self._protect(self.below, 3)
        ctypes.memset(self.place, ord("j"), ALIKE)

    def count(self) -> int:
        """How many bytes of the middle were written then."""
        return ctypes.string_at(self.place, ALIKE).count(b"j")

    def _mapped(self, place: int | None, length: int, protection: int) -> int:
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x10 if place else 0)  # MAP_FIXED
        size = ctypes.c_size_t(length)
        found: int = LIBC.mmap(ctypes.c_void_p(place), size, protection, kind, -1, ctypes.c_long(0))
        assert found == (place or found)
        return found

    def _protect(self, place: int, protection: int) -> None:
        assert LIBC.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(ALIKE), protection) == 0


def merged() -> int:
    """Return how many pages are merged."""
    path = Path("/proc/self/ksm_merging_pages")
    return int(path.read_text()) if path.exists() else 0


def main() -> None:
    """Run until killed."""
    work = Path(sys.argv[1])
    huge = AlignedMemory(mmap.MADV_HUGEPAGE, b"x")
    moved, onto = AlignedMemory(mmap.MADV_NOHUGEPAGE, b"a"), AlignedMemory(mmap.MADV_NOHUGEPAGE, b"b")
    joined = JoinedMemory()
    alike = mmap.mmap(-1, ALIKE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    alike.madvise(mmap.MADV_MERGEABLE)
    for page in range(64):
        alike[page * mmap.PAGESIZE] = page + 1
    signals = (signal.SIGUSR1, signal.SIGUSR2)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    number = 0
    while True:
        held = HUGE - huge.count(b"\0"), onto.count(b"a"), joined.count(), alike[:].count(b"m"), merged()
        (work / "beside").write_text(" ".join(map(str, held)))
        (work / "beside").rename(work / f"report-{number}")
        number += 1
        if signal.sigwait(signals) == signal.SIGUSR1:
            huge.memory.madvise(mmap.MADV_DONTNEED, huge.begin, HUGE)
            sizes = (ctypes.c_size_t(HUGE),) * 2
            # MREMAP_MAYMOVE | MREMAP_FIXED
            assert LIBC.mremap(ctypes.c_void_p(moved.place), *sizes, 3, ctypes.c_void_p(onto.place)) == onto.place
            joined.join()
            alike[:] = b"m" * ALIKE
            until = time.monotonic() + 40
            while merged() < 64 and Path("/sys/kernel/mm/ksm/run").read_text() == "1\n" and time.monotonic() < until:
                time.sleep(0.01)


if __name__ == "__main__":
    main()
