"""Says which of its pages read as written after a reset: of a huge page of zeros, of merged ones, and of others.

One JSON object: for each, by every way to ask, how many pages; whether the first is one of zeros, and how many were
merged within 40 s. Run with crckpt's preload library and without.
"""

import ctypes
import json
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)
PAGE: Final = mmap.PAGESIZE
HUGE: Final = 512 * PAGE
ALIKE: Final = 64
"""Pages that are alike."""
SCAN: Final = 0xC0606610
PRESENT, SOFT_DIRTY = 8, 128
FRAME: Final = (1 << 55) - 1
DIRTY: Final = 1 << 55
ZEROS: Final = 1 << 24


def dirty(content: bytes) -> int:
    """How many of these entries of a page map say written."""
    return sum(entry & DIRTY != 0 for (entry,) in struct.iter_unpack("<Q", content))


def asked(number: int, place: int, pages: int = 512) -> Iterator[tuple[str, int]]:
    """Each way to ask of so many pages at this place."""
    content = ctypes.create_string_buffer(8 * pages)
    offset = place // PAGE * 8
    assert LIBC.pread64(number, content, len(content), ctypes.c_long(offset)) == len(content)
    yield "pread", dirty(content.raw)
    assert LIBC.pread64(number, content, 8 * 30, ctypes.c_long(offset + 8 * 20)) == 8 * 30
    yield "a part", dirty(content.raw[: 8 * 30])
    os.lseek(number, offset, os.SEEK_SET)
    assert LIBC.read(number, content, len(content)) == len(content)
    yield "read", dirty(content.raw)
    regions = (ctypes.c_uint64 * (3 * 64))()
    words = (96, 0, place, place + pages * PAGE, 0, ctypes.addressof(regions), len(regions) // 3, 0)
    kinds = (0, 0, PRESENT, PRESENT | SOFT_DIRTY)
    request = ctypes.create_string_buffer(struct.pack("<12Q", *words, *kinds), 96)
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


def merged() -> int:
    """How many pages are, once all that are alike may be; 0 where none ever are."""
    count, until = 0, time.monotonic() + 40
    if Path("/sys/kernel/mm/ksm/run").read_text() == "1\n":
        while (count := int(Path("/proc/self/ksm_merging_pages").read_text())) < ALIKE and time.monotonic() < until:
            time.sleep(0.01)
    return count


def main() -> None:
    """See above."""
    alike = mmap.mmap(-1, ALIKE * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    alike.madvise(mmap.MADV_MERGEABLE)
    alike[:] = b"m" * len(alike)
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
    others = ctypes.addressof(ctypes.c_char.from_buffer(alike))
    told = {"alone": dict(asked(number, others, ALIKE)), "merged": merged()}
    told |= {"alike": dict(asked(number, others, ALIKE)), "is of zeros": is_of_zeros(place)}
    print(json.dumps(told | {"zeros": dict(asked(number, place)), "written": dict(asked(number, place + HUGE))}))


if __name__ == "__main__":
    main()
