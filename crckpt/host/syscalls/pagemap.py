"""Find which pages of a process were written: by PAGEMAP_SCAN (Linux 6.7), and by soft-dirty bits.

Source: proc_pid_pagemap(5), linux/fs.h, Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from crckpt.host.proc.maps import Map, read_maps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# linux/fs.h: PAGEMAP_SCAN, PM_SCAN_..., PAGE_IS_...
_PAGEMAP_SCAN = 0xC0606610
SCAN_WP_MATCHING = 1
SCAN_CHECK_WPASYNC = 2
_PAGE_IS_WPALLOWED = 1 << 0
PAGE_IS_WRITTEN = 1 << 1
_PAGE_IS_FILE = 1 << 2
_WITH_CONTENT = 1 << 3 | 1 << 4  # PAGE_IS_PRESENT, PAGE_IS_SWAPPED
_PAGE_IS_PFNZERO = 1 << 5
# Bits of an entry of the file itself.
SOFT_DIRTY_BIT = 1 << 55
_PRESENT_BIT = 1 << 63
_SWAPPED_BIT = 1 << 62

# struct page_region: start, end, categories.
_REGION: Final = 24
_REGION_END: Final = 8
_REGIONS_AT_ONCE: Final = 8192
# Bytes that are scanned in one call: during a call the program cannot map or unmap memory. Scanning 4 GiB in one call
# blocked it for 38 to 54 ms, in such pieces for 2 to 10 ms.
_PIECE: Final = 128 << 20

# The kernel's names for maps without a file. Other names in brackets are maps of the kernel: [vdso], [vvar].
_ANONYMOUS: Final = ("", "[heap]", "[stack]")
_OWN, _PRIVATE_OF_FILE, _OTHER = "own", "private of a file", "other"


class AddressRange(Struct, frozen=True):
    """Addresses of a map of a process, `end` exclusive."""

    start: int
    end: int


def private_anonymous(process: int | Sequence[Map], *, with_room: bool = False) -> tuple[AddressRange, ...]:
    """The private maps without a file of a process, or among these maps: only these are tracked. Raises OSError.

    `with_room`: each ends where the next map, of any kind, begins: it may grow up to there at any moment.
    """
    # hugetlb has a file. It must not even be scanned while bits are reset: on some kernels that never returns.
    maps = read_maps(process) if isinstance(process, int) else process
    return tuple(
        AddressRange(one.start, next_) if with_room else one for one, kind, next_ in _classify(maps) if kind == _OWN
    )


def count_changed_file_pages(pid: int) -> int:
    """Count the changed pages of a process's private maps of files, which are not tracked. Raises OSError."""
    found = 0
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
        for one in (one for one, kind, _ in _classify(read_maps(pid)) if kind == _PRIVATE_OF_FILE):
            # A page that was written is a private copy, and no longer a page of the file. CRIU skips the file's pages
            # likewise (criu/pagemap-cache.c:190).
            for regions in _regions(file.fileno(), one, _PAGE_IS_PFNZERO | _PAGE_IS_FILE):
                found += sum(end - start for start, end, _ in struct.iter_unpack("<3Q", regions)) // mmap.PAGESIZE
    return found


def others(process: int | Sequence[Map]) -> tuple[AddressRange, ...]:
    """All maps but the private ones without a file, of a process or among these. Raises OSError."""
    maps = read_maps(process) if isinstance(process, int) else process
    return tuple(one for one, kind, _ in _classify(maps) if kind != _OWN)


def _classify(maps: Sequence[Map]) -> Iterator[tuple[AddressRange, str, int]]:
    """Every map, its kind, and the start of the next one, which is never before its end."""
    listed = [each for each in maps if each.path != "[vsyscall]"]  # of no process
    spans = [AddressRange(each.start, each.end) for each in listed]
    nexts = [span.start for span in spans[1:]] + [span.end for span in spans[-1:]]
    for each, span, next_ in zip(listed, spans, nexts, strict=True):
        # A program can name its own memory (PR_SET_VMA_ANON_NAME).
        is_named = each.path not in _ANONYMOUS and not each.path.startswith("[anon:")
        kind = _OTHER if each.is_shared else _PRIVATE_OF_FILE if each.has_file else _OTHER if is_named else _OWN
        yield span, kind, max(span.end, next_)


def is_registered(pagemap: int, found: AddressRange) -> bool:
    """Return whether a map is write-protected asynchronously, by an open /proc/PID/pagemap. Raises OSError."""
    try:
        # One page is enough: the kernel checks the whole map that it lies in, and fails with EPERM.
        scan(pagemap, found.start, found.start + mmap.PAGESIZE, None, flags=SCAN_CHECK_WPASYNC)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTTY):  # ENOTTY: a kernel that cannot protect so, before 6.7
            raise
        return False
    return True


def find_written(pid: int, maps: Iterable[AddressRange]) -> NDArray[np.uint64]:
    """Find pages of these maps that may have been written: ascending rows of addresses (start, end). Raises OSError.

    A page is clean only if its map is registered and it was not written. Untouched and discarded pages are in no row.
    Nothing is reset.
    """
    import numpy as np  # takes some 100 ms, and is not needed to list maps

    found: list[NDArray[np.uint64]] = []
    # Opened each time: after an exec an old descriptor returns nothing, without an error.
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
        for one in maps:
            for regions in _regions(file.fileno(), one):
                rows = np.frombuffer(regions, dtype="<u8").reshape(-1, 3)
                # Without asynchronous protection (WPALLOWED) nothing is known of a page: it counts as written.
                kind = rows[:, 2] & (_PAGE_IS_WPALLOWED | PAGE_IS_WRITTEN)
                found.append(rows[kind != _PAGE_IS_WPALLOWED][:, :2])
    return np.concatenate(found) if found else np.empty((0, 2), dtype="<u8")


def find_soft_dirty(pid: int, maps: Iterable[AddressRange]) -> NDArray[np.uint64]:
    """Find pages of these maps that were written, by the kernel's soft-dirty bits. Raises OSError."""
    import numpy as np

    found: list[NDArray[np.uint64]] = []
    size = mmap.PAGESIZE
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
        for one in maps:
            for start in range(one.start, one.end, _PIECE):
                file.seek(start // size * 8)
                length = (min(start + _PIECE, one.end) - start) // size * 8
                content = bytearray()
                while len(content) < length:
                    if not (piece := file.read(length - len(content))):  # the program was replaced a moment ago
                        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
                    content += piece
                entries = np.frombuffer(content, dtype="<u8")
                # In a new map the bit is set for pages that do not exist, too.
                there = (entries & (_PRESENT_BIT | _SWAPPED_BIT)) != 0
                pages = np.flatnonzero(there & ((entries & SOFT_DIRTY_BIT) != 0)).astype("<u8") * size + start
                found.append(np.stack([pages, pages + size], axis=1))
    return np.concatenate(found) if found else np.empty((0, 2), dtype="<u8")


def _regions(pagemap: int, found: AddressRange, excluded: int = _PAGE_IS_PFNZERO) -> Iterator[bytes]:
    buffer = ctypes.create_string_buffer(_REGIONS_AT_ONCE * _REGION)
    place = found.start
    while place < found.end:
        masks = (excluded, excluded, _WITH_CONTENT)
        count, reached = scan(pagemap, place, min(place + _PIECE, found.end), buffer, masks=masks)
        regions = buffer.raw[: count * _REGION]
        # The kernel may report less progress than its last region, and would report that region twice.
        place = max(reached, struct.unpack_from("<Q", regions, len(regions) - _REGION + _REGION_END)[0] if count else 0)
        yield regions


def scan(
    pagemap: int,
    start: int,
    end: int,
    buffer: ctypes.Array[ctypes.c_char] | None,
    *,
    flags: int = 0,
    masks: tuple[int, int, int] = (_PAGE_IS_PFNZERO, _PAGE_IS_PFNZERO, _WITH_CONTENT),
) -> tuple[int, int]:
    """Scan an open /proc/PID/pagemap: (number of regions in `buffer`, where the scan ended). Raises OSError.

    `masks` of categories: inverted, all of, any of.
    """
    room = len(buffer) // _REGION if buffer else 0
    place = ctypes.addressof(buffer) if buffer else 0
    reported = _PAGE_IS_WPALLOWED | PAGE_IS_WRITTEN
    # struct pm_scan_arg: its size of 96 bytes, flags, start, end, walk_end (an answer), vec, vec_len, max_pages, masks.
    request = bytearray(struct.pack("<12Q", 96, flags, start, end, 0, place, room, 0, *masks, reported))
    count: int = fcntl.ioctl(pagemap, _PAGEMAP_SCAN, request)
    return count, struct.unpack_from("<Q", request, 32)[0]
