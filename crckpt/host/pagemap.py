"""Which pages were written: userfaultfd write protection, PAGEMAP_SCAN and soft-dirty, as thin typed calls.

Numbers and layouts: linux/userfaultfd.h and linux/fs.h (kernel 6.7 and later).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crckpt.errors import HostCannot

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_UFFD_USER_MODE_ONLY = 1
_UFFDIO_API = 0xC018AA3F
_UFFDIO_REGISTER = 0xC020AA00
_PAGEMAP_SCAN = 0xC0606610
_API_VERSION = 0xAA
# PAGEFAULT_FLAG_WP, WP_HUGETLBFS_SHMEM, WP_UNPOPULATED, WP_ASYNC
_FEATURES = 1 | 1 << 12 | 1 << 13 | 1 << 15
_MODE_WP = 2
_SCAN_WP_MATCHING = 1
_SCAN_CHECK_WPASYNC = 2
_PAGE_IS_WRITTEN = 1 << 1
_SOFT_DIRTY_BIT = 1 << 55


def tracks_by_write_protection() -> bool:
    """Protect a page of ours asynchronously, write it, and see whether PAGEMAP_SCAN tells. Raises HostCannot."""
    with _pages_of_ours(2) as (memory, address), _userfaultfd() as descriptor:
        length = len(memory)
        fcntl.ioctl(descriptor, _UFFDIO_REGISTER, struct.pack("<4Q", address, length, _MODE_WP, 0))
        _scan(address, length, _SCAN_WP_MATCHING | _SCAN_CHECK_WPASYNC)
        clean = _scan(address, length, _SCAN_CHECK_WPASYNC)
        memory[mmap.PAGESIZE] = 1
        return clean == 0 and _scan(address, length, _SCAN_CHECK_WPASYNC) == 1


def tracks_by_soft_dirty() -> bool:
    """Reset the soft-dirty bits of ours, write a page, and look at its bit."""
    with _pages_of_ours(1) as (memory, address):
        try:
            with Path("/proc/self/clear_refs").open("w") as file:
                file.write("4")
        except OSError:
            return False
        before = _soft_dirty(address)
        memory[0] = 2
        return not before and _soft_dirty(address)


@contextmanager
def _pages_of_ours(count: int) -> Iterator[tuple[mmap.mmap, int]]:
    memory = mmap.mmap(-1, count * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(count):
        memory[page * mmap.PAGESIZE] = 1
    view = ctypes.c_char.from_buffer(memory)
    try:
        yield memory, ctypes.addressof(view)
    finally:
        del view
        memory.close()


@contextmanager
def _userfaultfd() -> Iterator[int]:
    libc = ctypes.CDLL(None, use_errno=True)
    number = _USERFAULTFD.get(platform.machine())
    if number is None:
        raise HostCannot(f"write protection is not known for {platform.machine()}")
    descriptor = libc.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _UFFD_USER_MODE_ONLY)
    if descriptor < 0:
        raise HostCannot(f"userfaultfd is refused: {os.strerror(ctypes.get_errno())}")
    try:
        fcntl.ioctl(descriptor, _UFFDIO_API, struct.pack("<3Q", _API_VERSION, _FEATURES, 0))
        yield descriptor
    except OSError as error:
        raise HostCannot(f"this kernel has no asynchronous write protection: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _scan(start: int, length: int, flags: int) -> int:
    """How many regions of written pages PAGEMAP_SCAN reports."""
    regions = ctypes.create_string_buffer(24 * 8)
    request = struct.pack(
        "<12Q",
        96,
        flags,
        start,
        start + length,
        0,
        ctypes.addressof(regions),
        8,
        0,
        0,
        _PAGE_IS_WRITTEN,
        0,
        _PAGE_IS_WRITTEN,
    )
    with Path("/proc/self/pagemap").open("rb") as file:
        found: int = fcntl.ioctl(file, _PAGEMAP_SCAN, bytearray(request))
        return found


def _soft_dirty(address: int) -> bool:
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        entry: int = struct.unpack("<Q", file.read(8))[0]
        return bool(entry & _SOFT_DIRTY_BIT)
