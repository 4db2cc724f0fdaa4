"""Says which of its pages read as written after a reset: of a huge page of zeros and one that was written.

One JSON object: for each, by every way to ask, how many pages; and whether the first is one of zeros. Run with crckpt's
preload library and without.
"""

import ctypes
import json
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)
PAGE: Final = mmap.PAGESIZE
PAGES: Final = 512
HUGE: Final = PAGES * PAGE
SCAN: Final = 0xC0606610
PRESENT, SOFT_DIRTY = 8, 128
FRAME: Final = (1 << 55) - 1
DIRTY: Final = 1 << 55
ZEROS: Final = 1 << 24


def dirty(content: bytes) -> int:
    """How many of these entries of a page map say written."""
    return sum(entry & DIRTY != 0 for (entry,) in struct.iter_unpack("<Q", content))


def asked(number: int, place: int) -> Iterator[tuple[str, int]]:
    """Each way to ask of the huge page at this place."""
    content = ctypes.create_string_buffer(8 * PAGES)
    offset = place // PAGE * 8
    assert LIBC.pread64(number, content, len(content), ctypes.c_long(offset)) == len(content)
    yield "pread", dirty(content.raw)
    # From within it: CRIU reads a map from its start.
    assert LIBC.pread64(number, content, 8 * 100, ctypes.c_long(offset + 8 * 300)) == 8 * 100
    yield "a part", dirty(content.raw[: 8 * 100])
    os.lseek(number, offset, os.SEEK_SET)
    assert LIBC.read(number, content, len(content)) == len(content)
    yield "read", dirty(content.raw)
    regions = (ctypes.c_uint64 * (3 * 64))()
    words = (96, 0, place, place + HUGE, 0, ctypes.addressof(regions), 64, 0, 0, 0, PRESENT, PRESENT | SOFT_DIRTY)
    request = ctypes.create_string_buffer(struct.pack("<12Q", *words), 96)
    found = LIBC.ioctl(number, ctypes.c_ulong(SCAN), request)
    if found >= 0:
        told = [regions[3 * i : 3 * i + 3] for i in range(found)]
        assert all(kind & ~(PRESENT | SOFT_DIRTY) == 0 for _, _, kind in told)
        yield "scan", sum((end - start) // PAGE for start, end, kind in told if kind & SOFT_DIRTY)


def is_of_zeros(place: int) -> bool:
    """As the kernel says of the page in memory."""
    with Path("/proc/self/pagemap").open("rb") as entries, Path("/proc/kpageflags").open("rb") as flags:
        entries.seek(place // PAGE * 8)
        (entry,) = struct.unpack("<Q", entries.read(8))
        flags.seek((entry & FRAME) * 8)
        return bool(struct.unpack("<Q", flags.read(8))[0] & ZEROS)


def main() -> None:
    """See above."""
    memory = mmap.mmap(-1, 4 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE
    memory[begin + HUGE] = 1
    # What is mapped anew counts as written, until it is reset.
    reset = LIBC.open(b"/proc/self/clear_refs", os.O_RDWR)
    assert LIBC.write(reset, b"4", 1) == 1
    assert memory[begin] == 0
    number = LIBC.open(b"/proc/self/pagemap", os.O_RDONLY)
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + begin
    told = {"zeros": dict(asked(number, place)), "written": dict(asked(number, place + HUGE))}
    print(json.dumps(told | {"is of zeros": is_of_zeros(place)}))


if __name__ == "__main__":
    main()
