"""Test on crckpt's own pages what the kernel can do with memory: track writes, scan, load pages later."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.syscalls import pagemap, userfaultfd
from crckpt.host.syscalls.libc import LIBC, check, last_error, syscall

LIBC.mmap.restype = ctypes.c_void_p  # ctypes would cut the address to 32 bits
_READ_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED: Final = 0x10  # Python's mmap cannot choose an address
_BROUGHT: Final = 42  # any byte but 0: the kernel fills missing pages with zeros
_FAULT_WITHIN_S: Final = 5


def tracks_by_write_protection() -> bool:
    """Protect a page of ours asynchronously, write it, and check whether PAGEMAP_SCAN finds it. Raises HostCannot."""
    # Two pages: one must stay clean when the other is written.
    with _pages_of_ours(2) as (memory, address), _made_userfaultfd() as made:
        length = len(memory)
        made.add(address, address + length, userfaultfd.MODE_WP)
        # What was just registered reads as written, until a scan protects it.
        _scan(address, length, pagemap.SCAN_WP_MATCHING | pagemap.SCAN_CHECK_WPASYNC)
        clean = _scan(address, length, pagemap.SCAN_CHECK_WPASYNC)
        memory[mmap.PAGESIZE] = 1
        return clean == 0 and _scan(address, length, pagemap.SCAN_CHECK_WPASYNC) == 1


def tracks_by_soft_dirty() -> bool:
    """Reset the soft-dirty bits of ours, write a page, and look at its bit."""
    with _pages_of_ours(1) as (memory, address):
        try:
            Path("/proc/self/clear_refs").write_text("4")  # since Linux 3.11: reset the soft-dirty bits of all pages
        except OSError:
            return False
        before = _soft_dirty(address)
        memory[0] = 2
        return not before and _soft_dirty(address)


def soft_dirty_misses_joined() -> bool:
    """Return whether the kernel misses a write to a map that was merged with others; True if it cannot be tried."""
    # Kernels from 6.0 on miss it, until "mm: propagate VM_SOFTDIRTY on merge": new memory makes the map that it joins
    # dirty as a whole, a change of protection makes its pages writable, and another merges it with a clean map.
    with _pages_of_ours(3) as (memory, below), suppress(OSError):
        written, above = below + mmap.PAGESIZE, below + 2 * mmap.PAGESIZE
        _protect(below, mmap.PROT_READ)
        Path("/proc/self/clear_refs").write_text("4")
        size, kind = ctypes.c_size_t(mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        if LIBC.mmap(ctypes.c_void_p(above), size, _READ_WRITE, kind, -1, ctypes.c_long(0)) != above:
            raise last_error()
        for place, protection in ((written, 0), (written, _READ_WRITE), (below, _READ_WRITE)):
            _protect(place, protection)
        memory[mmap.PAGESIZE] = 2
        return not _soft_dirty(written)
    return True


def can_scan() -> bool:
    """Return whether PAGEMAP_SCAN finds a written page. Raises OSError if the kernel does not have it."""
    with _pages_of_ours(1) as (memory, address):
        return _scan(address, len(memory), 0) == 1


def can_bring_pages_later() -> bool:
    """Touch a missing page of ours, which another process then fills. Raises HostCannot, OSError.

    Hangs if it does not: call this in a child with a time limit.
    """
    # No flags: a program's page may be missing in the kernel, too, as in read(2). USER_MODE_ONLY makes that EFAULT.
    with _pages_of_ours(1) as (memory, address), _made_userfaultfd(features=0, flags=0) as made:
        memory.madvise(mmap.MADV_DONTNEED)
        made.add(address, address + len(memory), userfaultfd.MODE_MISSING)
        # A thread could not do this: whoever touches the page waits in the kernel and holds Python's lock.
        child = os.fork()
        if child == 0:
            try:
                select.select([made.descriptor], [], [], _FAULT_WITHIN_S)
                # struct uffd_msg: event, padding, flags of the fault, its address, ...
                fault = struct.unpack_from("<Q", os.read(made.descriptor, 32), 16)[0] & -mmap.PAGESIZE
                page = ctypes.create_string_buffer(bytes([_BROUGHT]) * mmap.PAGESIZE)
                copied = struct.pack("<5Q", fault, ctypes.addressof(page), mmap.PAGESIZE, 0, 0)
                fcntl.ioctl(made.descriptor, userfaultfd.COPY, copied)
            finally:
                os._exit(0)  # this copy of our parent must not continue its work
        content = memory[0]
        os.waitpid(child, 0)
        return content == _BROUGHT


@contextmanager
def _pages_of_ours(count: int) -> Iterator[tuple[mmap.mmap, int]]:
    memory = mmap.mmap(-1, count * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Scans report no page that was never touched.
    for page in range(count):
        memory[page * mmap.PAGESIZE] = 1
    view = ctypes.c_char.from_buffer(memory)
    try:
        yield memory, ctypes.addressof(view)
    finally:
        del view  # a mapping with a view of it cannot be closed (BufferError)
        memory.close()


def _protect(address: int, protection: int) -> None:
    check(LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), protection))


@contextmanager
def _made_userfaultfd(
    features: int = userfaultfd.ASYNC_WRITE_PROTECTION, flags: int = userfaultfd.USER_MODE_ONLY
) -> Iterator[userfaultfd.Userfaultfd]:
    try:
        descriptor = syscall("userfaultfd", os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except OSError as error:
        raise HostCannot(f"userfaultfd is refused: {error.strerror}") from error
    try:
        yield userfaultfd.Userfaultfd(descriptor, features)
    except OSError as error:
        raise HostCannot(f"userfaultfd cannot do this here: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _scan(start: int, length: int, flags: int) -> int:
    """Count the regions of written pages that PAGEMAP_SCAN reports."""
    regions, masks = ctypes.create_string_buffer(24 * 8), (0, pagemap.PAGE_IS_WRITTEN, 0)
    with Path("/proc/self/pagemap").open("rb") as file:
        return pagemap.scan(file.fileno(), start, start + length, regions, flags=flags, masks=masks)[0]


def _soft_dirty(address: int) -> bool:
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        entry: int = struct.unpack("<Q", file.read(8))[0]
        return bool(entry & pagemap.SOFT_DIRTY_BIT)
