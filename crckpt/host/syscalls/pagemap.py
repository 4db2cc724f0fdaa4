"""Which pages were written: userfaultfd write protection, PAGEMAP_SCAN and soft-dirty, as thin typed calls.

Numbers and layouts: linux/userfaultfd.h and linux/fs.h (kernel 6.7 and later).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import io
import mmap
import os
import select
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host.proc.maps import read_maps
from crckpt.host.syscalls.kcmp import is_same_file
from crckpt.host.syscalls.libc import LIBC, check, last_error, syscall

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LIBC.mmap.restype = ctypes.c_void_p
_READ_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED: Final = 0x10

_UFFD_USER_MODE_ONLY = 1
_UFFDIO_API = 0xC018AA3F
_UFFDIO_REGISTER = 0xC020AA00
_UFFDIO_UNREGISTER = 0x8010AA01
_UFFDIO_COPY = 0xC028AA03
_UFFDIO_WRITEPROTECT = 0xC018AA06
_PAGEMAP_SCAN = 0xC0606610
_API_VERSION = 0xAA
# PAGEFAULT_FLAG_WP, WP_HUGETLBFS_SHMEM, WP_UNPOPULATED, WP_ASYNC
_FEATURES = 1 | 1 << 12 | 1 << 13 | 1 << 15
_MODE_MISSING = 1
_MODE_WP = 2
_SCAN_WP_MATCHING = 1
_SCAN_CHECK_WPASYNC = 2
_PAGE_IS_WPALLOWED = 1 << 0
_PAGE_IS_WRITTEN = 1 << 1
_PAGE_IS_FILE = 1 << 2
_PAGE_IS_PRESENT = 1 << 3
_PAGE_IS_SWAPPED = 1 << 4
_PAGE_IS_PFNZERO = 1 << 5
_SOFT_DIRTY_BIT = 1 << 55
_PRESENT_BIT = 1 << 63
_SWAPPED_BIT = 1 << 62

_REGION: Final = 24
_REGION_END: Final = 8
_REGIONS_AT_ONCE: Final = 8192
_PIECE: Final = 128 << 20
"""Bytes that are looked at in one call: while the kernel looks, the program cannot map or unmap."""

_ANONYMOUS: Final = ("", "[heap]", "[stack]")
_OWN, _PRIVATE_OF_FILE, _OTHER = "own", "private of a file", "other"

_BROUGHT = 42
_FAULT_WITHIN_S = 5


class AddressRange(Struct, frozen=True):
    """Addresses of a map of a process, `end` exclusive."""

    start: int
    end: int


def private_anonymous(pid: int, *, with_room: bool = False) -> tuple[AddressRange, ...]:
    """The maps of a process whose pages are its own and of no file; no hugetlb, which has a file. Raises OSError.

    Only these are tracked: everything else is dumped as a whole. hugetlb must not even be looked at while bits are
    reset: on some kernels that never returns. `with_room`: each ends where the next map, of any kind, begins: up to
    there it may grow at any moment.
    """
    return tuple(
        AddressRange(one.start, next_) if with_room else one for one, kind, next_ in _maps(pid) if kind == _OWN
    )


def changed_of_files(pid: int) -> int:
    """How many pages of its private maps of files a process has changed: they are its own, but not tracked.

    Raises OSError.
    """
    found = 0
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
        for one in (one for one, kind, _ in _maps(pid) if kind == _PRIVATE_OF_FILE):
            for regions in _regions(file.fileno(), one, _PAGE_IS_PFNZERO | _PAGE_IS_FILE):
                found += sum(end - start for start, end, _ in struct.iter_unpack("<3Q", regions)) // mmap.PAGESIZE
    return found


def others(pid: int) -> tuple[AddressRange, ...]:
    """Every other map. Raises OSError."""
    return tuple(one for one, kind, _ in _maps(pid) if kind != _OWN)


def _maps(pid: int) -> Iterator[tuple[AddressRange, str, int]]:
    """Every map, its kind, and where the next one begins: where one has changed while they were read, at its end."""
    listed = [each for each in read_maps(pid) if each.path != "[vsyscall]"]  # of no process
    spans = [AddressRange(each.start, each.end) for each in listed]
    nexts = [span.start for span in spans[1:]] + [span.end for span in spans[-1:]]
    for each, span, next_ in zip(listed, spans, nexts, strict=True):
        is_named = each.path not in _ANONYMOUS and not each.path.startswith("[anon:")
        kind = _OTHER if each.is_shared else _PRIVATE_OF_FILE if each.has_file else _OTHER if is_named else _OWN
        yield span, kind, max(span.end, next_)


class WriteProtection:
    """Asynchronous write protection of another process's memory, through a userfaultfd of its own that we have.

    It lasts for as long as this does, and ends with us: then every page reads as written again.
    """

    def __init__(self, descriptor: int) -> None:
        """Takes `descriptor` over. Raises HostCannot where the kernel cannot do it."""
        self._descriptor = descriptor
        try:
            fcntl.ioctl(descriptor, _UFFDIO_API, struct.pack("<3Q", _API_VERSION, _FEATURES, 0))
        except OSError as error:
            self.close()
            raise HostCannot(
                f"this kernel does not track writes by userfaultfd: {error.strerror}", hint="use a kernel from 6.7 on"
            ) from error

    def register(self, found: AddressRange, *, is_new: bool = True) -> None:
        """Track this map; if it `is_new`, every page of it reads as written. Raises OSError.

        EBUSY: another userfaultfd has it. ENOMEM, EINVAL, ENOENT: there is no such map any more, another came in
        between, it cannot be tracked, or all memory that the userfaultfd was made for has gone, by exec or exit.
        """
        length = found.end - found.start
        fcntl.ioctl(self._descriptor, _UFFDIO_REGISTER, struct.pack("<4Q", found.start, length, _MODE_WP, 0))
        if is_new:
            try:
                # Pages that were moved here (mremap) may come with bits, and would read as not written.
                fcntl.ioctl(self._descriptor, _UFFDIO_WRITEPROTECT, struct.pack("<3Q", found.start, length, 0))
            except OSError:
                self.unregister(found)
                raise

    def unregister(self, found: AddressRange) -> None:
        """Track this map no longer. Raises OSError; EINVAL, ENOMEM: there is no such map any more."""
        fcntl.ioctl(self._descriptor, _UFFDIO_UNREGISTER, struct.pack("<2Q", found.start, found.end - found.start))

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return self._descriptor >= 0

    def is_held_by(self, pid: int, descriptor: int) -> bool:
        """Whether that descriptor of a process is this userfaultfd too."""
        return self.is_open and is_same_file(pid, descriptor, self._descriptor)

    def close(self) -> None:
        """Stop tracking."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_registered(pagemap: int, found: AddressRange) -> bool:
    """Whether somebody write-protects the map so. `pagemap` is an open /proc/PID/pagemap. Raises OSError."""
    try:
        _request(pagemap, found.start, found.start + mmap.PAGESIZE, None, flags=_SCAN_CHECK_WPASYNC)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTTY):  # ENOTTY: a kernel that cannot protect so, before 6.7
            raise
        return False
    return True


def written(pid: int, maps: Iterable[AddressRange]) -> NDArray[np.uint64]:
    """Which pages of these maps must be taken to be written: rows of addresses (start, end), ascending.

    Pages that nobody has touched, or that were dropped, are in no row. Nothing is reset. A page is clean only if its
    map is registered and it was not written. Raises OSError.
    """
    import numpy as np

    found: list[NDArray[np.uint64]] = []
    # Opened each time: an old descriptor goes on to answer after an exec, with nothing.
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
        for one in maps:
            for regions in _regions(file.fileno(), one):
                rows = np.frombuffer(regions, dtype="<u8").reshape(-1, 3)
                kind = rows[:, 2] & (_PAGE_IS_WPALLOWED | _PAGE_IS_WRITTEN)
                found.append(rows[kind != _PAGE_IS_WPALLOWED][:, :2])
    return np.concatenate(found) if found else np.empty((0, 2), dtype="<u8")


def soft_dirty(pid: int, maps: Iterable[AddressRange]) -> NDArray[np.uint64]:
    """The same by the kernel's soft-dirty bits."""
    import numpy as np

    found: list[NDArray[np.uint64]] = []
    size = mmap.PAGESIZE
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
        for one in maps:
            for start in range(one.start, one.end, _PIECE):
                file.seek(start // size * 8)
                length = (min(start + _PIECE, one.end) - start) // size * 8
                entries = np.frombuffer(_all_of(file, length), dtype="<u8")
                there = (entries & (_PRESENT_BIT | _SWAPPED_BIT)) != 0
                pages = np.flatnonzero(there & ((entries & _SOFT_DIRTY_BIT) != 0)).astype("<u8") * size + start
                found.append(np.stack([pages, pages + size], axis=1))
    return np.concatenate(found) if found else np.empty((0, 2), dtype="<u8")


def _all_of(file: io.FileIO, length: int) -> bytes:
    read = bytearray()
    while len(read) < length:
        piece = file.read(length - len(read))
        if not piece:  # the program was replaced a moment ago
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        read += piece
    return bytes(read)


def _regions(pagemap: int, found: AddressRange, excluded: int = _PAGE_IS_PFNZERO) -> Iterator[bytes]:
    buffer = ctypes.create_string_buffer(_REGIONS_AT_ONCE * _REGION)
    place = found.start
    while place < found.end:
        count, reached = _request(pagemap, place, min(place + _PIECE, found.end), buffer, excluded=excluded)
        regions = buffer.raw[: count * _REGION]
        # The kernel may say that it went less far than its last region: what it tells again would count twice.
        place = max(reached, struct.unpack_from("<Q", regions, len(regions) - _REGION + _REGION_END)[0] if count else 0)
        yield regions


def _request(
    pagemap: int,
    start: int,
    end: int,
    buffer: ctypes.Array[ctypes.c_char] | None,
    *,
    flags: int = 0,
    excluded: int = _PAGE_IS_PFNZERO,
) -> tuple[int, int]:
    """(regions found, where the kernel went on to) of PAGEMAP_SCAN for pages that hold something, and are of no kind
    that is `excluded`.
    """
    room = len(buffer) // _REGION if buffer else 0
    place = ctypes.addressof(buffer) if buffer else 0
    holds_something = (excluded, excluded, _PAGE_IS_PRESENT | _PAGE_IS_SWAPPED)
    told = _PAGE_IS_WPALLOWED | _PAGE_IS_WRITTEN
    request = bytearray(struct.pack("<12Q", 96, flags, start, end, 0, place, room, 0, *holds_something, told))
    count: int = fcntl.ioctl(pagemap, _PAGEMAP_SCAN, request)
    return count, struct.unpack_from("<Q", request, 32)[0]


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


def soft_dirty_misses_joined() -> bool:
    """Whether a page of ours has no bit that was written in a map that had joined others; also if that cannot be tried.

    Kernels miss it from 6.0 on, until "mm: propagate VM_SOFTDIRTY on merge": new memory makes the map that it joins
    dirty as a whole, a change of protection makes its pages writable, and another makes it join one that is clean.
    """
    with _pages_of_ours(3) as (memory, below), suppress(OSError):
        written, above = below + mmap.PAGESIZE, below + 2 * mmap.PAGESIZE
        _protect(below, mmap.PROT_READ)
        Path("/proc/self/clear_refs").write_text("4")
        _map_anew(above)
        for place, protection in ((written, 0), (written, _READ_WRITE), (below, _READ_WRITE)):
            _protect(place, protection)
        memory[mmap.PAGESIZE] = 2
        return not _soft_dirty(written)
    return True


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


def _protect(address: int, protection: int) -> None:
    check(LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), protection))


def _map_anew(address: int) -> None:
    """A fresh page in place of the one there."""
    size, kind = ctypes.c_size_t(mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    if LIBC.mmap(ctypes.c_void_p(address), size, _READ_WRITE, kind, -1, ctypes.c_long(0)) != address:
        raise last_error()


@contextmanager
def _userfaultfd(features: int = _FEATURES, flags: int = _UFFD_USER_MODE_ONLY) -> Iterator[int]:
    try:
        descriptor = syscall("userfaultfd", os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except OSError as error:
        raise HostCannot(f"userfaultfd is refused: {error.strerror}") from error
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
