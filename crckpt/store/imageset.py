"""An image directory as CRIU left it, as sources of pages; incremental ones are made complete.

An incremental set has page map entries whose pages lie in the set before it: behind its symlink `parent`, or, if that
one was stored, in a checkpoint. Of the first kind every entry gets its pages here, of the second it is told which they
are. Page maps are changed to have them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images.pagemap import IN_PARENT, PRESENT, Entry, PageMap, is_pagemap, read_pagemap, write_pagemap
from crckpt.model import PAGE_SIZE
from crckpt.store.extents import (
    EXTENT,
    Bytes,
    Extents,
    Mask,
    Numbers,
    Places,
    count_of,
    ends_of,
    found_in,
    join,
    part,
    spread,
)
from crckpt.store.index import DETAILS, FILE, PAGES

_PARENT: Final = "parent"
_NOTHING: Final = np.empty(0, EXTENT)
BATCH_PAGES: Final = 2048
"""Pages that are worked on at once: 8 MiB."""


class Source(Struct, frozen=True, dict=True):
    """An object to be stored: `size` bytes of `content`, or of `files`.

    `extents` say where its pages lie, as in `Index`, with the number of a file for that of a pack: nothing here takes
    memory by the page, however large the images are. `left` are the addresses of pages that belong to the object beside
    these, and lie in the checkpoint before.
    """

    name: str
    kind: str
    size: int
    extents: Extents
    files: tuple[Path, ...] = ()
    content: bytes = b""
    pagemap: str = ""
    left: Extents = _NOTHING

    @property
    def key(self) -> tuple[str, str]:
        """As `StoredFile.key`."""
        return self.kind, self.pagemap or self.name

    @property
    def pages(self) -> int:
        """The last one may be filled up with zeros."""
        return -(-self.size // PAGE_SIZE)

    def read(self, start: int, into: Bytes) -> Numbers:
        """Fill `into` (n by page size) with the pages from the `start`-th on; their numbers (addresses for PAGES).

        Raises IntegrityError if files shrink.
        """
        end = start + len(into)
        some = part(self.extents, self._ends, start, end)
        self._fill(some, into, last=end == self.pages)
        return spread(some["first"], some["count"])

    def some(self, which: Places) -> Iterator[tuple[slice, Bytes]]:
        """The pages at these positions, in order, in batches: which of them, and their contents.

        The contents are good until the next batch: its memory is used again. Raises IntegrityError if files shrink.
        """
        buffer = np.empty((min(len(which), BATCH_PAGES), PAGE_SIZE), np.uint8)
        for start in range(0, len(which), BATCH_PAGES):
            wanted = which[start : start + BATCH_PAGES]
            pages = buffer[: len(wanted)]
            spot = np.searchsorted(self._ends, wanted, side="right")
            ahead = (self._ends[spot] - wanted).astype(np.uint64)
            found = self.extents[spot]
            found["page"] += found["count"] - ahead
            found["count"] = 1
            self._fill(found, pages, last=int(wanted[-1]) == self.pages - 1)
            yield slice(start, start + len(wanted)), pages

    @cached_property
    def _ends(self) -> Places:
        return ends_of(self.extents)

    def _fill(self, extents: Extents, into: Bytes, *, last: bool) -> None:
        padding = self.pages * PAGE_SIZE - self.size if last else 0
        octets = into.reshape(-1).data
        octets[len(octets) - padding :] = bytes(padding)
        octets = octets[: len(octets) - padding]
        reads = extents.copy()
        reads["first"] = ends_of(extents) - extents["count"]
        reads = join(reads)
        with ExitStack() as stack:
            numbers = np.unique(reads["pack"]).tolist() if self.files else []
            opened = {number: stack.enter_context(self.files[number].open("rb", buffering=0)) for number in numbers}
            for first, count, number, page in reads.tolist():
                wanted = octets[first * PAGE_SIZE : (first + count) * PAGE_SIZE]
                if self.files:
                    _read_into(opened[number], page * PAGE_SIZE, wanted)
                else:
                    wanted[:] = self.content[page * PAGE_SIZE : page * PAGE_SIZE + len(wanted)]


def of_bytes(name: str, kind: str, content: bytes) -> Source:
    """Bytes to be stored."""
    return Source(name, kind, len(content), _whole(len(content)), content=content)


def sources(directory: Path, details: bytes, *, incremental: bool) -> tuple[Source, ...]:
    """Everything to be stored of an image directory, in the order of the names, `details` last.

    If it is `incremental`, what it leaves to the set before is `left`. Raises IntegrityError if page maps and pages do
    not fit together, or if something is no regular file.
    """
    sizes = _sizes(directory)
    found: dict[str, Source] = {}
    for name in filter(is_pagemap, sizes):
        pagemap = _read_pagemap(directory, name)
        pages = _pages_source(directory, name, pagemap, incremental=incremental)
        for source in (_map_source(directory, name, pagemap), pages):
            if source.name in found:
                raise IntegrityError(f"{name}: {source.name} belongs to another page map, too")
            found[source.name] = source
        if not pages.size and not len(pages.left) and pagemap.pages_name not in sizes:
            del found[pagemap.pages_name]
    rest = (_file_source(directory, name, sizes[name]) for name in sizes if name not in found)
    everything = sorted((*found.values(), *rest), key=lambda source: source.name)
    return (*everything, of_bytes("details", DETAILS, details))


def _sizes(directory: Path) -> dict[str, int]:
    sizes = {}
    for path in sorted(directory.iterdir()):
        if path.name == _PARENT and path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            raise IntegrityError(f"{path} is no image: it is not a regular file")
        sizes[path.name] = path.stat().st_size
    return sizes


def _read_pagemap(directory: Path, name: str) -> PageMap:
    try:
        return read_pagemap((directory / name).read_bytes(), name)
    except FileNotFoundError:
        raise IntegrityError(f"{name} is missing in {directory}, where an incremental set needs it") from None


def _file_source(directory: Path, name: str, size: int) -> Source:
    return Source(name, FILE, size, _whole(size), (directory / name,))


def _whole(size: int) -> Extents:
    return np.array([(0, -(-size // PAGE_SIZE), 0, 0)] if size else [], EXTENT)


def _map_source(directory: Path, name: str, pagemap: PageMap) -> Source:
    if not any(entry.flags & IN_PARENT for entry in pagemap.entries):
        return _file_source(directory, name, (directory / name).stat().st_size)
    entries: list[Entry] = []
    for entry in pagemap.entries:
        whole = entry._replace(flags=entry.flags & ~IN_PARENT | PRESENT)
        last = entries[-1] if entries else whole
        if last.flags == whole.flags and last.vaddr + last.pages * PAGE_SIZE == whole.vaddr:
            entries[-1] = last._replace(pages=last.pages + whole.pages)
        else:
            entries.append(whole)
    return of_bytes(name, FILE, write_pagemap(PageMap(pagemap.pages_id, tuple(entries))))


def _pages_source(directory: Path, name: str, pagemap: PageMap, *, incremental: bool) -> Source:
    left = _left(name, pagemap) if incremental else _NOTHING
    own = pagemap
    if len(left):
        own = PageMap(pagemap.pages_id, tuple(entry for entry in pagemap.entries if not entry.flags & IN_PARENT))
    files: list[Path] = []
    extents = _placed(directory, name, own, files, ())
    size = count_of(extents) * PAGE_SIZE
    return Source(pagemap.pages_name, PAGES, size, extents, tuple(files), pagemap=name, left=left)


def _left(name: str, pagemap: PageMap) -> Extents:
    """Which pages lie in the set before. Then all entries must be in order: those of both kinds are put together."""
    entries = np.array([entry for entry in pagemap.entries if entry.pages], np.uint64).reshape(-1, 3)
    inherited = (entries[:, 2] & np.uint64(IN_PARENT)) != 0
    if not inherited.any():
        return _NOTHING
    first, count = entries[:, 0] // np.uint64(PAGE_SIZE), entries[:, 1]
    if (first[:-1] + count[:-1] > first[1:]).any() or count.max() > np.iinfo(np.uint32).max:
        raise IntegrityError(f"{name}: its entries are too large, or not in the order of their addresses")
    left = np.zeros(int(inherited.sum()), EXTENT)
    left["first"], left["count"] = first[inherited], count[inherited]
    return left


def _placed(directory: Path, name: str, pagemap: PageMap, files: list[Path], seen: tuple[Path, ...]) -> Extents:
    """Where all pages of a page map lie, in its order. Adds the files that they lie in to `files`."""
    _check_size(directory / pagemap.pages_name, name, pagemap.present)
    number = len(files)
    files.append(directory / pagemap.pages_name)
    entries = np.array([entry for entry in pagemap.entries if entry.pages], np.uint64).reshape(-1, 3)
    inherited = (entries[:, 2] & np.uint64(IN_PARENT)) != 0
    above = _placed_above(directory, name, files, (*seen, directory.resolve())) if inherited.any() else None
    if above is not None and entries[inherited, 1].max() > above["count"].sum(dtype=np.uint64):
        raise IntegrityError(f"{name}: an entry needs more pages than the set before has")
    extents = np.empty(len(entries), EXTENT)
    extents["first"], extents["count"], extents["pack"] = entries[:, 0] // np.uint64(PAGE_SIZE), entries[:, 1], number
    own = np.where(inherited, 0, entries[:, 1])
    extents["page"] = np.cumsum(own) - own
    return extents if above is None else _resolved(extents, inherited, above, name)


def _placed_above(directory: Path, name: str, files: list[Path], seen: tuple[Path, ...]) -> Extents:
    link = directory / _PARENT
    above = link.resolve()
    if not link.is_symlink() or not above.is_dir():
        raise IntegrityError(f"{name}: pages lie in the set before, and {link} does not lead to it")
    if above in seen:
        raise IntegrityError(f"{link} leads back to {above}")
    return _placed(above, name, _read_pagemap(above, name), files, seen)


def _resolved(extents: Extents, inherited: Mask, above: Extents, name: str) -> Extents:
    """The extents, with those that are inherited replaced by what `above` has there."""
    try:
        found, which = found_in(extents[inherited], above)
    except LookupError as missing:
        raise IntegrityError(f"{name}: the page at {missing.args[0] * PAGE_SIZE:#x} is in no set before") from None
    place = np.concatenate((np.flatnonzero(~inherited), np.flatnonzero(inherited)[which]))
    return join(np.concatenate((extents[~inherited], found))[np.argsort(place, kind="stable")])


def _check_size(pages: Path, name: str, present: int) -> None:
    size = pages.stat().st_size if pages.exists() else 0
    if size != present * PAGE_SIZE:
        what = f"holds {size} bytes" if pages.exists() else "is missing"
        raise IntegrityError(f"{name} describes {present} pages, and {pages.name} {what}")


def _read_into(file: FileIO, offset: int, into: memoryview) -> None:
    while into:
        count = os.preadv(file.fileno(), [into], offset)
        if not count:
            raise IntegrityError(f"{Path(str(file.name)).name} shrank while it was read")
        into, offset = into[count:], offset + count
