"""Which pages were written: userfaultfd write protection, PAGEMAP_SCAN and soft-dirty, as thin typed calls.

Numbers and layouts: linux/userfaultfd.h and linux/fs.h (kernel 6.7 and later).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import select
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from crckpt.errors import HostCannot

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_UFFD_USER_MODE_ONLY = 1
_UFFDIO_API = 0xC018AA3F
_UFFDIO_REGISTER = 0xC020AA00
_UFFDIO_COPY = 0xC028AA03
_PAGEMAP_SCAN = 0xC0606610
_API_VERSION = 0xAA
# PAGEFAULT_FLAG_WP, WP_HUGETLBFS_SHMEM, WP_UNPOPULATED, WP_ASYNC
_FEATURES = 1 | 1 << 12 | 1 << 13 | 1 << 15
_MODE_MISSING = 1
_MODE_WP = 2
_SCAN_WP_MATCHING = 1
_SCAN_CHECK_WPASYNC = 2
_PAGE_IS_WRITTEN = 1 << 1
_SOFT_DIRTY_BIT = 1 << 55

_BROUGHT = 42
_FAULT_WITHIN_S = 5


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


def scans() -> bool:
    """Whether PAGEMAP_SCAN finds a page that was written. Raises OSError if the kernel does not know the call."""
    with _pages_of_ours(1) as (memory, address):
        return _scan(address, len(memory), 0) == 1


def brings_pages_later() -> bool:
    """Touch a page of ours that another process brings only then. Raises HostCannot, OSError.

    Hangs if nobody brings it: for a child of ours that has a time limit.
    """
    with _pages_of_ours(1) as (memory, address), _userfaultfd(features=0, flags=0) as descriptor:
        memory.madvise(mmap.MADV_DONTNEED)
        fcntl.ioctl(descriptor, _UFFDIO_REGISTER, struct.pack("<4Q", address, len(memory), _MODE_MISSING, 0))
        child = os.fork()
        if child == 0:
            _bring(descriptor)
        seen = memory[0]
        os.waitpid(child, 0)
        return seen == _BROUGHT


def _bring(descriptor: int) -> NoReturn:
    try:
        select.select([descriptor], [], [], _FAULT_WITHIN_S)
        # struct uffd_msg: event, padding, flags of the fault, its address, ...
        fault = struct.unpack_from("<Q", os.read(descriptor, 32), 16)[0] & -mmap.PAGESIZE
        page = ctypes.create_string_buffer(bytes([_BROUGHT]) * mmap.PAGESIZE)
        fcntl.ioctl(descriptor, _UFFDIO_COPY, struct.pack("<5Q", fault, ctypes.addressof(page), mmap.PAGESIZE, 0, 0))
    finally:
        os._exit(0)


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
def _userfaultfd(features: int = _FEATURES, flags: int = _UFFD_USER_MODE_ONLY) -> Iterator[int]:
    libc = ctypes.CDLL(None, use_errno=True)
    number = _USERFAULTFD.get(platform.machine())
    if number is None:
        raise HostCannot(f"write protection is not known for {platform.machine()}")
    descriptor = libc.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | flags)
    if descriptor < 0:
        raise HostCannot(f"userfaultfd is refused: {os.strerror(ctypes.get_errno())}")
    try:
        fcntl.ioctl(descriptor, _UFFDIO_API, struct.pack("<3Q", _API_VERSION, features, 0))
        yield descriptor
    except OSError as error:
        raise HostCannot(f"userfaultfd cannot do this here: {error.strerror}") from error
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
