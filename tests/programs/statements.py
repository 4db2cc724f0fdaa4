"""Run Python statements from stdin, one a line; print "done" and the number in `result` after each."""

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from typing import Final

PAGE: Final = mmap.PAGESIZE
LIBC: Final = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = LIBC.mremap.restype = ctypes.c_void_p


def area(pages: int, flags: int = 0) -> int:
    """Return the address of this many new private pages."""
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags
    place: int = LIBC.mmap(None, ctypes.c_size_t(pages * PAGE), 3, kind, -1, ctypes.c_long(0))
    assert place not in (None, 2**64 - 1), os.strerror(ctypes.get_errno())
    return place


def write(place: int, pages: Iterable[int], value: int = 1) -> None:
    """Write a byte of each of these pages."""
    for page in pages:
        ctypes.memset(place + page * PAGE, value, 1)


def drop(place: int, pages: int) -> None:
    """Give these pages back to the kernel."""
    assert LIBC.madvise(ctypes.c_void_p(place), ctypes.c_size_t(pages * PAGE), mmap.MADV_DONTNEED) == 0


def resized(place: int, pages: int, to: int) -> int:
    """Resize the pages at their end; return their address, which may be another."""
    found: int = LIBC.mremap(ctypes.c_void_p(place), ctypes.c_size_t(pages * PAGE), ctypes.c_size_t(to * PAGE), 1)
    assert found != 2**64 - 1, os.strerror(ctypes.get_errno())
    return found


def moved(place: int, pages: int, to: int) -> int:
    """Move the pages; return their new address."""
    size = ctypes.c_size_t(pages * PAGE)
    found: int = LIBC.mremap(ctypes.c_void_p(place), size, size, 3, ctypes.c_void_p(to))
    assert found == to, os.strerror(ctypes.get_errno())
    return found


def main() -> None:
    """Run until stdin ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        exec(line, globals())  # noqa: S102
        print("done", globals().get("result", 0), flush=True)


if __name__ == "__main__":
    main()
