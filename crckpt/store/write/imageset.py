"""Read an image directory that CRIU wrote as sources of pages; make incremental sets complete.

An incremental set has page map entries whose pages lie in its parent, to which its symlink `parent` leads, and so on.
The pages are collected from there. One set of the chain may be a *base*, which is a checkpoint: its pages are only
listed. Page maps are changed to have all pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.host.disk.checked_files import open_checked, read_checked
from crckpt.images.pagemap import IN_PARENT, PARENT, PageMap, is_pagemap, read_pagemap, write_pagemap
from crckpt.model import PAGE_SIZE
from crckpt.store.format.extents import (
    EXTENT,
    ZERO,
    Bytes,
    Extents,
    Numbers,
    Positions,
    expand_ranges,
    extent_ends,
    find_extents,
    join_extents,
    page_count,
    slice_extents,
    unique_sorted,
)
from crckpt.store.format.index import DETAILS, FILE, PAGES
from crckpt.store.layout import IMAGE

_NOTHING: Final = np.empty(0, EXTENT)
# Stands for the number of a file. As with pages of zeros, the pages of the base have no position in a file.
_IN_BASE: Final = ZERO

# The largest size of an image that is read as a whole: `files.img` of more than a million files.
_MOST: Final = 256 << 20
# The same of a page map, then of 64 million entries, and of a deleted file, which has its content.
_MOST_LARGE: Final = 1 << 30

BATCH_PAGES: Final = 2048
"""Pages that are worked on at once: 8 MiB."""


# `dict`: cached_property needs a __dict__.
class Source(Struct, frozen=True, dict=True):
    """An object to store: `size` bytes of `content`, or of `files`.

    `extents` say where its pages lie, as in `Index`, with file numbers for pack numbers: memory does not grow with the
    number of pages. `left` are addresses of further pages of the object, which the parent checkpoint has.
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
        """The number of pages; the last one may be padded with zeros."""
        return -(-self.size // PAGE_SIZE)

    def read(self, start: int, into: Bytes) -> Numbers:
        """Fill `into` (n by page size) with pages from the `start`-th on; return their numbers (addresses for PAGES).

        Raises IntegrityError if files shrink.
        """
        end = start + len(into)
        some = slice_extents(self.extents, self._ends, start, end)
        self._read_extents(some, into, last=end == self.pages)
        return expand_ranges(some["first"], some["count"])

    def read_some(self, which: Positions) -> Iterator[tuple[slice, Bytes]]:
        """Yield the pages at these positions, in order, in batches: which of them, and their contents.

        The contents are valid until the next batch, which reuses the memory. Raises IntegrityError if files shrink.
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
            self._read_extents(found, pages, last=int(wanted[-1]) == self.pages - 1)
            yield slice(start, start + len(wanted)), pages

    @cached_property
    def is_one_image(self) -> bool:
        """Whether it has the pages of one image of memory, all of them and in the order of the file."""
        numbers = self._ends - self.extents["count"]
        return self.kind == PAGES and len(self.files) == 1 and bool((self.extents["page"] == numbers).all())

    @cached_property
    def _ends(self) -> Positions:
        return extent_ends(self.extents)

    def _read_extents(self, extents: Extents, into: Bytes, *, last: bool) -> None:
        padding = self.pages * PAGE_SIZE - self.size if last else 0
        octets = into.reshape(-1).data
        # The memory may have been used before.
        octets[len(octets) - padding :] = bytes(padding)
        octets = octets[: len(octets) - padding]
        reads = extents.copy()
        # Numbered by their position in `into`: what is adjacent there and in the file is one read.
        reads["first"] = extent_ends(extents) - extents["count"]
        reads = join_extents(reads)
        with ExitStack() as stack:
            numbers = unique_sorted(reads["pack"]).tolist() if self.files else []
            opened = {number: stack.enter_context(opened_image(self.files[number])) for number in numbers}
            for first, count, number, page in reads.tolist():
                wanted = octets[first * PAGE_SIZE : (first + count) * PAGE_SIZE]
                if self.files:
                    read_into(opened[number], self.files[number].name, page * PAGE_SIZE, wanted)
                else:
                    wanted[:] = self.content[page * PAGE_SIZE : page * PAGE_SIZE + len(wanted)]


def bytes_source(name: str, kind: str, content: bytes) -> Source:
    """Make a source of bytes."""
    return Source(name, kind, len(content), _whole_file(len(content)), content=content)


def find_sources(directory: Path, details: bytes, base: Path | None = None) -> tuple[Source, ...]:
    """Find everything to store of an image directory, in the order of names, `details` last.

    Pages that it leaves to the set in `base`, which need not exist, are `left`. Raises IntegrityError if page maps and
    pages do not match, or if something is no regular file.
    """
    sizes = _sizes(directory)
    found: dict[str, Source] = {}
    for name in filter(is_pagemap, sizes):
        pagemap = _read_pagemap(directory, name)
        chain = _Chain(name, base.resolve() if base else None, [])
        try:
            extents = chain.locate_pages(directory, pagemap, ())
        except RecursionError:
            raise IntegrityError(f"{name}: its chain of parent images is too long") from None
        in_base = extents["pack"] == _IN_BASE
        # Pages that are left are later merged with the others by address.
        if in_base.any() and (extents["first"][:-1] + extents["count"][:-1] > extents["first"][1:]).any():
            raise IntegrityError(f"{name}: its entries are not in the order of their addresses")
        own = extents[~in_base]
        size = page_count(own) * PAGE_SIZE
        left = extents[in_base]
        left["pack"] = 0
        pages = Source(pagemap.pages_name, PAGES, size, own, tuple(chain.files), pagemap=name, left=left)
        if pagemap.with_flag(IN_PARENT).any():
            described = bytes_source(name, FILE, write_pagemap(pagemap.join()))
        else:
            described = _file_source(directory, name, sizes[name])
        for source in (described, pages):
            if source.name in found:
                raise IntegrityError(f"{name}: {source.name} also belongs to another page map")
            found[source.name] = source
        # A page map without pages needs no pages file.
        if not pages.size and not len(pages.left) and pagemap.pages_name not in sizes:
            del found[pagemap.pages_name]
    rest = (_file_source(directory, name, sizes[name]) for name in sizes if name not in found)
    everything = sorted((*found.values(), *rest), key=lambda source: source.name)
    return (*everything, bytes_source("details", DETAILS, details))


def _sizes(directory: Path) -> dict[str, int]:
    sizes = {}
    for path in sorted(directory.iterdir()):
        # The link to the set before, whose pages are taken over into this checkpoint.
        if path.name == PARENT and path.is_symlink():
            continue
        if IMAGE.fullmatch(path.name) is None:
            raise IntegrityError(f"{str(path)!r} is not an image name")
        with opened_image(path) as descriptor:
            sizes[path.name] = os.fstat(descriptor).st_size
    return sizes


def _read_pagemap(directory: Path, name: str) -> PageMap:
    try:
        return read_pagemap(read_image_file(directory / name), name)
    except FileNotFoundError:
        raise IntegrityError(f"{name} is missing in {directory}, where an incremental set needs it") from None


def _file_source(directory: Path, name: str, size: int) -> Source:
    return Source(name, FILE, size, _whole_file(size), (directory / name,))


def _whole_file(size: int) -> Extents:
    return np.array([(0, -(-size // PAGE_SIZE), 0, 0)] if size else [], EXTENT)


class _Chain(NamedTuple):
    """The sets in which the pages of one page map lie; `files` are those found so far."""

    name: str
    base: Path | None
    files: list[Path]

    def locate_pages(self, directory: Path, pagemap: PageMap, seen: tuple[Path, ...]) -> Extents:
        """Locate all pages of a page map, in its order, with numbers of `files`."""
        pages, size, number = directory / pagemap.pages_name, 0, len(self.files)
        # A link, even one that leads nowhere, is there: `opened_image` refuses it.
        if is_there := os.path.lexists(pages):
            with opened_image(pages) as descriptor:
                size = os.fstat(descriptor).st_size
        if size != pagemap.present * PAGE_SIZE:
            what = f"holds {size} bytes" if is_there else "is missing"
            raise IntegrityError(f"{self.name} describes {pagemap.present} pages, and {pages.name} {what}")
        self.files.append(pages)
        is_some = pagemap.table[:, 1] > 0
        entries, inherited = pagemap.table[is_some], pagemap.with_flag(IN_PARENT)[is_some]
        # A damaged page map may have any count: check it before it becomes 32 bits, or takes memory.
        if entries[~inherited, 1].max(initial=0) > np.iinfo(np.uint32).max:
            raise IntegrityError(f"{self.name}: an entry has more pages than a process can have")
        above = self._locate_in_parent(directory, (*seen, directory.resolve())) if inherited.any() else _NOTHING
        most = page_count(above) if above is not None else np.iinfo(np.uint32).max
        if inherited.any() and entries[inherited, 1].max() > most:
            raise IntegrityError(f"{self.name}: an entry needs more pages than the set before can have")
        extents = np.empty(len(entries), EXTENT)
        extents["first"], extents["count"], extents["pack"] = (
            entries[:, 0] // np.uint64(PAGE_SIZE),
            entries[:, 1],
            number,
        )
        # The pages of PRESENT entries lie one after the other in the file.
        own = np.where(inherited, 0, entries[:, 1])
        extents["page"] = np.cumsum(own) - own
        if above is None:
            extents["pack"][inherited], extents["page"][inherited] = _IN_BASE, 0
            return extents
        if not inherited.any():
            return extents
        try:
            found, which = find_extents(extents[inherited], above)
        except LookupError as missing:
            raise IntegrityError(
                f"{self.name}: the page at {missing.args[0] * PAGE_SIZE:#x} is in no set before"
            ) from None
        place = np.concatenate((np.flatnonzero(~inherited), np.flatnonzero(inherited)[which]))
        return join_extents(np.concatenate((extents[~inherited], found))[np.argsort(place, kind="stable")])

    def _locate_in_parent(self, directory: Path, seen: tuple[Path, ...]) -> Extents | None:
        """Locate the pages of the parent set; None if that is the base."""
        link = directory / PARENT
        above = link.resolve()
        if link.is_symlink() and above == self.base:
            return None
        if not link.is_symlink() or not above.is_dir():
            raise IntegrityError(f"{self.name}: pages lie in the set before, and {link} does not lead to it")
        if above in seen:
            raise IntegrityError(f"{link} leads back to {above}")
        return self.locate_pages(above, _read_pagemap(above, self.name), seen)


@contextmanager
def opened_image(path: Path) -> Iterator[int]:
    """Open an image file, and yield its descriptor. Raises IntegrityError, OSError."""
    # It must belong to root, to the user of this process, or to the owner of its directory: unpacking an archive gives
    # both the same owner.
    descriptor = open_checked(path, owner=path.parent.stat().st_uid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_image_file(path: Path) -> bytes:
    """Read an image as a whole. Raises what `opened_image` raises, and IntegrityError if it is too large."""
    is_large = is_pagemap(path.name) or path.name.startswith("ghost-file-")
    return read_checked(path, _MOST_LARGE if is_large else _MOST, owner=path.parent.stat().st_uid)


def read_into(descriptor: int, name: str, offset: int, into: memoryview) -> None:
    """Fill `into` from an image's `offset` on. Raises IntegrityError if the image is shorter, OSError."""
    while into:
        count = os.preadv(descriptor, [into], offset)
        if not count:
            raise IntegrityError(f"{name} shrank while it was read")
        into, offset = into[count:], offset + count
