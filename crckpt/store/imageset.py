"""An image directory as CRIU left it, as sources of pages; incremental ones are made complete.

An incremental set has a symlink `parent` to the one before it, and page map entries whose pages lie there. Here every
entry gets its pages, wherever they lie, and page maps are changed to say so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images.pagemap import IN_PARENT, PRESENT, Entry, PageMap, read_pagemap, write_pagemap
from crckpt.model import PAGE_SIZE
from crckpt.store.extents import EXTENT, Bytes, Extents, Mask, Numbers, Places, ends_of, join, part, spread
from crckpt.store.index import DETAILS, FILE, PAGES

_PAGEMAP: Final = re.compile(r"pagemap-.+\.img")
_PARENT: Final = "parent"
BATCH_PAGES: Final = 2048
"""Pages that are worked on at once: 8 MiB."""


class Source(Struct, frozen=True, dict=True):
    """An object to be stored: `size` bytes of `content`, or of `files`.

    `extents` say where its pages lie, as in `Index`, with the number of a file for that of a pack: nothing here takes
    memory by the page, however large the images are.
    """

    name: str
    kind: str
    size: int
    extents: Extents
    files: tuple[Path, ...] = ()
    content: bytes = b""
    pagemap: str = ""

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


def sources(directory: Path, details: bytes) -> tuple[Source, ...]:
    """Everything to be stored of an image directory, in the order of the names, `details` last.

    Raises IntegrityError if page maps and pages do not fit together, or if something is no regular file.
    """
    sizes = _sizes(directory)
    found: dict[str, Source] = {}
    for name in filter(_PAGEMAP.fullmatch, sizes):
        pagemap = _read_pagemap(directory, name)
        files: list[Path] = []
        extents = _placed(directory, name, pagemap, files, ())
        for source in (_map_source(directory, name, pagemap), _pages_source(name, pagemap, extents, files)):
            if source.name in found:
                raise IntegrityError(f"{name}: {source.name} belongs to another page map, too")
            found[source.name] = source
        if not len(extents) and pagemap.pages_name not in sizes:
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
    entries = tuple(_made_present(entry) for entry in pagemap.entries)
    return of_bytes(name, FILE, write_pagemap(PageMap(pagemap.pages_id, entries)))


def _made_present(entry: Entry) -> Entry:
    return entry._replace(flags=entry.flags & ~IN_PARENT | PRESENT)


def _pages_source(name: str, pagemap: PageMap, extents: Extents, files: list[Path]) -> Source:
    size = int(extents["count"].sum(dtype=np.int64)) * PAGE_SIZE
    return Source(pagemap.pages_name, PAGES, size, extents, tuple(files), pagemap=name)


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
    bounds, owner = _cells(above)
    wanted = extents[inherited]
    ends = wanted["first"] + wanted["count"]
    low = np.searchsorted(bounds, wanted["first"], side="right") - 1
    counts = np.searchsorted(bounds, ends, side="left") - low
    cell, which = spread(low, counts), np.repeat(np.arange(len(wanted)), counts)
    first = np.maximum(wanted["first"][which], bounds[cell])
    if (owner[cell] < 0).any():
        missing = int(first[owner[cell] < 0][0]) * PAGE_SIZE
        raise IntegrityError(f"{name}: the page at {missing:#x} is in no set before")
    found = above[owner[cell]]
    found["page"] += first - found["first"]
    found["count"] = np.minimum(ends[which], bounds[cell + np.uint64(1)]) - first
    found["first"] = first
    place = np.concatenate((np.flatnonzero(~inherited), np.flatnonzero(inherited)[which]))
    return join(np.concatenate((extents[~inherited], found))[np.argsort(place, kind="stable")])


def _cells(extents: Extents) -> tuple[Numbers, Places]:
    """The addresses between which the same extent counts, and which that is, -1 for none.

    Of extents that have the same address the first counts, as in CRIU.
    """
    ends = extents["first"] + extents["count"]
    bounds = np.unique(np.concatenate((np.zeros(1, np.uint64), extents["first"], ends)))
    owner = np.full(len(bounds), -1, np.int64)
    low, high = np.searchsorted(bounds, extents["first"]), np.searchsorted(bounds, ends)
    cell, which = spread(low, high - low), np.repeat(np.arange(len(extents)), high - low)
    # Of several values for one cell the last stays.
    owner[cell[::-1]] = which[::-1]
    return bounds, owner


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
