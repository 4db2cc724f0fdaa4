"""Read a process's memory from the store by address. Every byte is verified before it is returned."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import mm
from crckpt.images.other_files import MemFd
from crckpt.images.tree import ImageProcess
from crckpt.images.vdso import is_sound
from crckpt.model import PAGE_SIZE
from crckpt.store.format.extents import EXTENT, Extents, extent_ends
from crckpt.store.format.index import PAGES, StoredFile
from crckpt.store.read.reader import Reader

_MAP_SHARED: Final = 1
_OF_THE_KERNEL: Final = mm.VVAR | mm.VSYSCALL | mm.GUARD  # CRIU saves no content of these
_ANONYMOUS: Final = mm.ANON_PRIVATE | mm.ANON_SHARED | mm.SYSV_IPC
# In bytes. That of Linux has two or three pages, which may have 64 KiB each.
_LARGEST_VDSO: Final = 1 << 20
_NOTHING: Final = np.empty(0, EXTENT)


class Region(Struct, frozen=True):
    """One map: `path` is its file, if any, and `extents` the pages of it that the checkpoint has.

    `extents` are as in the store's index: `first` is an address / PAGE_SIZE, in ascending order.
    """

    vma: mm.Vma
    path: str
    extents: Extents

    @property
    def pages(self) -> int:
        """The number of its pages that the checkpoint has."""
        return int(self.extents["count"].sum(dtype=np.int64))

    @property
    def is_shared(self) -> bool:
        """Whether other processes may have the same memory."""
        return bool(self.vma.flags & _MAP_SHARED)

    @property
    def is_zero_elsewhere(self) -> bool:
        """Whether pages that the checkpoint lacks are zeros; if not, they are in a file or belong to the kernel."""
        if self.vma.status & _OF_THE_KERNEL:
            return False
        return bool(self.vma.status & _ANONYMOUS) or (self.is_shared and bool(self.vma.status & mm.MEMFD))

    @property
    def dirty_pages(self) -> int:
        """Pages that were written and are in no file: CRIU dumps only these."""
        # The exception is the vdso: CRIU dumps all of it (criu/mem.c, should_dump_entire_vma).
        return 0 if self.vma.status & mm.VDSO else self.pages

    @property
    def resident_pages(self) -> int | None:
        """Pages that were in memory or in swap; None for mapped files, of which CRIU dumps only written pages."""
        return self.pages if self.is_zero_elsewhere or self.vma.status & (_OF_THE_KERNEL | mm.VDSO) else None

    @property
    def permissions(self) -> str:
        """The permissions as in /proc/PID/maps: `rw-p`."""
        bits = ((mm.PROT_READ, "r"), (mm.PROT_WRITE, "w"), (mm.PROT_EXEC, "x"))
        return "".join(word if self.vma.prot & bit else "-" for bit, word in bits) + "ps"[self.is_shared]

    @property
    def label(self) -> str:
        """The path, or the kind in brackets: `[heap]`."""
        return self.path or f"[{self.vma.kind}]"


class Memory:
    """The memory of one process of a checkpoint. Every method raises IntegrityError if it is damaged."""

    def __init__(self, reading: Reader, process: ImageProcess, status: int = -1) -> None:
        """Read nothing but the index. A zombie has no regions. `status`: only maps that have one of these bits."""
        vmas = process.memory.vmas if process.memory is not None else ()
        self.regions = tuple(_regions(reading.page_maps, process, [vma for vma in vmas if vma.status & status]))
        self._reading = reading

    def runs(self, region: Region) -> Iterator[tuple[int, memoryview]]:
        """Yield (address, bytes) of the pages that the checkpoint has of a region, in order; zeros may be left out.

        Each is valid until the next one is read. Takes bounded memory, however large the region is: see `Reader`.
        """
        return self._runs(region.extents)

    def contents(self, extents: Extents) -> Iterator[memoryview]:
        """Yield the pages of these extents in order, without zeros. Each is valid until the next one is read."""
        return (content for _, content in self._reading.parts(_as_stored_file(extents)))

    def read(self, address: int, length: int) -> bytes:
        """Read `length` bytes at an address; fewer if a page is not mapped, or the checkpoint does not have it.

        `length` bytes must fit in memory.
        """
        content = bytearray()
        end = address + length
        for region in self.regions:
            start = address + len(content)
            if region.vma.end <= start:
                continue
            stop = min(end, region.vma.end)
            # Here nothing is mapped: what follows is at another address.
            if region.vma.start > start or start >= stop:
                break
            piece = self._piece(region, start, stop)
            content += piece
            if len(piece) < stop - start:
                break
        return bytes(content)

    def _piece(self, region: Region, start: int, stop: int) -> bytes:
        """The bytes of a region from `start` to `stop`, or to the first page that is not known."""
        low, high = start // PAGE_SIZE, -(-stop // PAGE_SIZE)
        if not region.is_zero_elsewhere:
            # The first page that the extents lack.
            known = low
            for first, count, _, _ in cut_extents(region.extents, low, high).tolist():
                if first > known:
                    break
                known = first + count
            high = known
        extents = cut_extents(region.extents, low, high)
        pages = bytearray((high - low) * PAGE_SIZE)
        for address, content in self._runs(extents):
            at = address - low * PAGE_SIZE
            pages[at : at + len(content)] = content
        begin = start - low * PAGE_SIZE
        return bytes(pages[begin : begin + stop - start])

    def _runs(self, extents: Extents) -> Iterator[tuple[int, memoryview]]:
        """Yield (address, bytes) of the pages of these extents."""
        first = extents["first"].astype(np.int64)
        begin = extent_ends(extents) - extents["count"]
        # Extents that follow each other in memory become one run, wherever the store has them.
        jumps = np.concatenate(([True], first[1:] != first[:-1] + extents["count"][:-1]))[: len(first)]
        begins: list[int] = (begin[jumps] * PAGE_SIZE).tolist()
        addresses: list[int] = (first[jumps] * PAGE_SIZE).tolist()
        for at, content in self._reading.parts(_as_stored_file(extents)):
            offset, left = at, content
            while left:
                spot = bisect_right(begins, offset) - 1
                taken = begins[spot + 1] - offset if spot + 1 < len(begins) else len(left)
                yield addresses[spot] + offset - begins[spot], left[:taken]
                offset, left = offset + taken, left[taken:]


def cut_extents(extents: Extents, low: int, high: int) -> Extents:
    """Cut the extents, which are in ascending order, to the pages from `low` to before `high`."""
    first = extents["first"].astype(np.int64)
    # Use bisection: a map may have hundreds of thousands of extents.
    begin = int(np.searchsorted(first + extents["count"], low, side="right"))
    found = extents[begin : max(begin, int(np.searchsorted(first, high, side="left")))].copy()
    if len(found):
        before = max(0, low - int(found["first"][0]))
        found["first"][0] += before
        found["page"][0] += before
        found["count"][0] -= before
        found["count"][-1] -= max(0, int(found["first"][-1]) + int(found["count"][-1]) - high)
    return found


def _as_stored_file(extents: Extents) -> StoredFile:
    """Make a file of these pages for `Reader.parts`."""
    return StoredFile("pages", PAGES, int(extents["count"].sum(dtype=np.int64)) * PAGE_SIZE, "", extents)


def find_unsound_vdsos(reading: Reader, processes: Iterable[ImageProcess]) -> frozenset[int]:
    """Find the PIDs of processes whose vDSO CRIU must not read. Raises IntegrityError."""
    # Most have the same.
    known: dict[bytes, bool] = {}
    found = set()
    for process in processes:
        memory = Memory(reading, process, mm.VDSO)
        for region in memory.regions:
            pages = region.extents[["count", "pack", "page"]].tobytes()
            if pages not in known and region.vma.size <= _LARGEST_VDSO:
                content = memory.read(region.vma.start, region.vma.size)
                known[pages] = len(content) == region.vma.size and is_sound(content)
            # Shared memory may change until CRIU reads it.
            if region.is_shared or not known.get(pages):
                found.add(process.pid)
    return frozenset(found)


def _regions(stored: Mapping[str, StoredFile], process: ImageProcess, vmas: Iterable[mm.Vma]) -> Iterator[Region]:
    mapped = {file.id: file for file in process.mapped}
    extents: dict[str, Extents] = {}
    for vma in vmas:
        file = None if vma.file_id is None else mapped[vma.file_id]
        # The page map that has its pages: that of the process, or that of its shared memory.
        source, shift = f"pagemap-{process.pid}.img", 0
        if vma.flags & _MAP_SHARED and vma.status & (mm.ANON_SHARED | mm.SYSV_IPC | mm.MEMFD):
            source = f"pagemap-shmem-{file.shmid if isinstance(file, MemFd) else vma.shmid}.img"
            # These pages are numbered from the start of the segment (criu/shmem.c).
            shift = (vma.start - vma.pgoff) // PAGE_SIZE
        if source not in extents:
            extents[source] = stored[source].extents if source in stored else _NOTHING
            # All searches rely on this order, but an index from elsewhere may say anything.
            first, count = extents[source]["first"].astype(np.int64), extents[source]["count"]
            if (first[1:] < first[:-1] + count[:-1]).any():
                raise IntegrityError(f"{source}: its pages are not in the order of their addresses")
        found = cut_extents(extents[source], vma.start // PAGE_SIZE - shift, vma.end // PAGE_SIZE - shift)
        found["first"] = found["first"].astype(np.int64) + shift
        yield Region(vma, "" if file is None else file.title, found)
