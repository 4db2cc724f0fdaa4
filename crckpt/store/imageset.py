"""An image directory as CRIU left it, as sources of pages; incremental ones are made complete.

An incremental set has a symlink `parent` to the one before it, and page map entries whose pages lie there. Here every
entry gets its pages, wherever they lie, and page maps are changed to say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from crckpt.errors import IntegrityError
from crckpt.images.pagemap import IN_PARENT, PRESENT, Entry, PageMap, read_pagemap, write_pagemap
from crckpt.model import PAGE_SIZE
from crckpt.store.extents import Bytes, Mask, Numbers, Places, spread
from crckpt.store.index import DETAILS, FILE, PAGES

_PAGEMAP: Final = re.compile(r"pagemap-.+\.img")
_PARENT: Final = "parent"
BATCH_PAGES: Final = 4096
"""Pages that are worked on at once: 16 MiB."""


@dataclass(frozen=True)
class Table:
    """Where pages lie, one entry for each: address in pages, which file, and page number in that file."""

    address: Numbers
    file: Places
    page: Places


@dataclass(frozen=True)
class Source:
    """An object to be stored: `size` bytes of `content`, of one file, or of pages in `files` as `table` says."""

    name: str
    kind: str
    size: int
    files: tuple[Path, ...] = ()
    content: bytes = b""
    pagemap: str = ""
    table: Table | None = None

    @property
    def key(self) -> tuple[str, str]:
        """As `StoredFile.key`."""
        return self.kind, self.pagemap or self.name

    @cached_property
    def pages(self) -> int:
        """The last one may be filled up with zeros."""
        return -(-self.size // PAGE_SIZE)

    def batches(self) -> Iterator[tuple[Numbers, Bytes]]:
        """Numbers (addresses for PAGES) and contents of the pages, in order. Raises IntegrityError if files shrink.

        The contents are good until the next batch: its memory is used again.
        """
        buffer = np.empty((min(self.pages, BATCH_PAGES), PAGE_SIZE), np.uint8)
        for start in range(0, self.pages, BATCH_PAGES):
            end = min(start + BATCH_PAGES, self.pages)
            pages = buffer[: end - start]
            self._fill(pages.reshape(-1).data, start, end)
            yield np.arange(start, end, dtype=np.uint64) if self.table is None else self.table.address[start:end], pages

    def some(self, which: Places) -> Iterator[tuple[slice, Bytes]]:
        """The pages at these positions (in order), in batches: which of them, and their contents, as `batches` does."""
        buffer = np.empty((min(len(which), BATCH_PAGES), PAGE_SIZE), np.uint8)
        for start in range(0, len(which), BATCH_PAGES):
            wanted = which[start : start + BATCH_PAGES]
            pages = buffer[: len(wanted)]
            begins = np.concatenate(([0], np.flatnonzero(np.diff(wanted) != 1) + 1, [len(wanted)])).tolist()
            for begin, end in pairwise(begins):
                first = int(wanted[begin])
                self._fill(pages[begin:end].reshape(-1).data, first, first + end - begin)
            yield slice(start, start + len(wanted)), pages

    def _fill(self, into: memoryview, start: int, end: int) -> None:
        offset, length = start * PAGE_SIZE, min(end * PAGE_SIZE, self.size) - start * PAGE_SIZE
        into[length:] = bytes(len(into) - length)
        if not self.files:
            into[:length] = self.content[offset : offset + length]
        elif self.table is None:
            _read_into(self.files[0], offset, into[:length])
        else:
            for file, page, first, count in _runs(self.table, start, end):
                part = into[first * PAGE_SIZE : (first + count) * PAGE_SIZE]
                _read_into(self.files[file], page * PAGE_SIZE, part)


def sources(directory: Path, details: bytes) -> tuple[Source, ...]:
    """Everything to be stored of an image directory, in the order of the names, `details` last.

    Raises IntegrityError if page maps and pages do not fit together, or if something is no regular file.
    """
    sizes = _sizes(directory)
    found: dict[str, Source] = {}
    for name in filter(_PAGEMAP.fullmatch, sizes):
        pagemap = _read_pagemap(directory, name)
        files: list[Path] = []
        table = _table(directory, name, pagemap, files, ())
        for source in (_map_source(directory, name, pagemap), _pages_source(name, pagemap, table, files)):
            if source.name in found:
                raise IntegrityError(f"{name}: {source.name} belongs to another page map, too")
            found[source.name] = source
        if not pagemap.present and not len(table.address) and pagemap.pages_name not in sizes:
            del found[pagemap.pages_name]
    rest = (Source(name, FILE, sizes[name], (directory / name,)) for name in sizes if name not in found)
    everything = sorted((*found.values(), *rest), key=lambda source: source.name)
    return (*everything, Source("details", DETAILS, len(details), content=details))


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


def _map_source(directory: Path, name: str, pagemap: PageMap) -> Source:
    if not any(entry.flags & IN_PARENT for entry in pagemap.entries):
        path = directory / name
        return Source(name, FILE, path.stat().st_size, (path,))
    content = write_pagemap(PageMap(pagemap.pages_id, tuple(_made_present(entry) for entry in pagemap.entries)))
    return Source(name, FILE, len(content), content=content)


def _made_present(entry: Entry) -> Entry:
    return entry._replace(flags=entry.flags & ~IN_PARENT | PRESENT)


def _pages_source(name: str, pagemap: PageMap, table: Table, files: list[Path]) -> Source:
    size = len(table.address) * PAGE_SIZE
    return Source(pagemap.pages_name, PAGES, size, tuple(files), pagemap=name, table=table)


def _table(directory: Path, name: str, pagemap: PageMap, files: list[Path], seen: tuple[Path, ...]) -> Table:
    """Where all pages of a page map lie, in its order. Adds the files that they lie in to `files`."""
    _check_size(directory / pagemap.pages_name, name, pagemap.present)
    number = len(files)
    files.append(directory / pagemap.pages_name)
    entries = np.array(pagemap.entries, np.uint64).reshape(-1, 3)
    inherited = (entries[:, 2] & np.uint64(IN_PARENT)) != 0
    above = _table_above(directory, name, files, (*seen, directory.resolve())) if inherited.any() else None
    if above is not None and entries[inherited, 1].max() > len(above.address):
        raise IntegrityError(f"{name}: an entry needs more pages than the set before has")
    address = spread(entries[:, 0] // np.uint64(PAGE_SIZE), entries[:, 1])
    absent = np.repeat(inherited, entries[:, 1].astype(np.int64))
    file, page = np.full(len(address), number, np.int64), np.cumsum(~absent) - 1
    if above is not None:
        file[absent], page[absent] = _inherited(address, absent, above, name)
    return Table(address, file, page)


def _table_above(directory: Path, name: str, files: list[Path], seen: tuple[Path, ...]) -> Table:
    link = directory / _PARENT
    above = link.resolve()
    if not link.is_symlink() or not above.is_dir():
        raise IntegrityError(f"{name}: pages lie in the set before, and {link} does not lead to it")
    if above in seen:
        raise IntegrityError(f"{link} leads back to {above}")
    return _table(above, name, _read_pagemap(above, name), files, seen)


def _inherited(address: Numbers, absent: Mask, above: Table, name: str) -> tuple[Places, Places]:
    """Files and pages of the addresses that `absent` marks. Of pages with one address the first counts, as in CRIU."""
    order = np.argsort(above.address, kind="stable")
    wanted, there = address[absent], above.address[order]
    spot = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
    if (there[spot] != wanted).any():
        missing = int(wanted[there[spot] != wanted][0]) * PAGE_SIZE
        raise IntegrityError(f"{name}: the page at {missing:#x} is in no set before")
    found = order[spot]
    return above.file[found], above.page[found]


def _check_size(pages: Path, name: str, present: int) -> None:
    size = pages.stat().st_size if pages.exists() else 0
    if size != present * PAGE_SIZE:
        what = f"holds {size} bytes" if pages.exists() else "is missing"
        raise IntegrityError(f"{name} describes {present} pages, and {pages.name} {what}")


def _runs(table: Table, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(file, page, first, count) of what can be read at once; `first` counts from `start`."""
    file, page = table.file[start:end], table.page[start:end]
    breaks = np.flatnonzero((np.diff(file) != 0) | (np.diff(page) != 1)) + 1
    begins = np.concatenate(([0], breaks))
    counts = np.diff(np.concatenate((begins, [end - start])))
    yield from zip(file[begins].tolist(), page[begins].tolist(), begins.tolist(), counts.tolist(), strict=True)


def _read_into(path: Path, offset: int, into: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while into:
            count = file.readinto(into)
            if not count:
                raise IntegrityError(f"{path.name} shrank while it was read")
            into = into[count:]
