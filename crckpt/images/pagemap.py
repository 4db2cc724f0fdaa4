"""`pagemap-PID.img` and `pagemap-shmem-ID.img`: which pages are in `pages-N.img` (images/pagemap.proto).

`pages-N.img` holds the pages of all PRESENT entries, raw and in order. The pages of IN_PARENT entries are in the image
directory behind the symlink `parent`. Source: criu/include/pagemap.h:133.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import Image, Record, read_head, read_image, write_image
from crckpt.images.wire import VARINT, Message, encode, encode_varint, fields
from crckpt.model import PAGE_SIZE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IN_PARENT: Final = 1
LAZY: Final = 2
PRESENT: Final = 4

PARENT: Final = "parent"
"""The symlink in a set of images that leads to the previous set."""

_KNOWN_FLAGS: Final = IN_PARENT | LAZY | PRESENT
_KNOWN_FIELDS: Final = frozenset({1, 2, 3, 4, 5})
_ADDRESSES: Final = 1 << 64
_NAME: Final = re.compile(r"pagemap-.+\.img")

# CRIU 4.2 and later write for an entry: its size (u32), address, a count for older versions (0), flags, count. A map
# can have 100,000 entries: if all have this form, numpy decodes them together.
_SIZE_BYTES: Final = 4
_ADDRESS_TAG, _OLD_COUNT_TAG, _FLAGS_TAG, _COUNT_TAG = 0x08, 0x10, 0x20, 0x28
_OLD_COUNTS: Final = 1 << 32
# The longest varint below 1 << 63. numpy does not decode larger numbers.
_VARINT_BYTES: Final = 9


class Entry(NamedTuple):
    """`pages` pages from the address `vaddr` (a multiple of the page size) on."""

    vaddr: int
    pages: int
    flags: int


class PageMap(Struct, frozen=True, eq=False):
    """The pages of a process or of a shared segment. `pages_id` is the N of `pages-N.img`.

    `table` has a row for each entry, with the columns of `Entry`.
    """

    pages_id: int
    table: NDArray[np.uint64]

    @classmethod
    def of(cls, pages_id: int, entries: Iterable[Entry]) -> PageMap:
        """Make a page map of these entries."""
        import numpy as np

        return cls(pages_id, np.array(list(entries), np.uint64).reshape(-1, len(Entry._fields)))

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(Entry(*row) for row in self.table.tolist())

    @property
    def pages_name(self) -> str:
        """The name of the file with the pages."""
        return f"pages-{self.pages_id}.img"

    @property
    def present(self) -> int:
        """The number of pages in that file."""
        # As Python's integers, which do not overflow: the counts come from a file.
        return sum(self.table[self.with_flag(PRESENT), 1].tolist())

    def with_flag(self, flag: int) -> NDArray[np.bool_]:
        """Return for each entry whether it has this flag."""
        found: NDArray[np.bool_] = (self.table[:, 2] & flag) != 0
        return found

    def join(self) -> PageMap:
        """Return the same pages as PRESENT, in as few entries as possible."""
        # The result is never LAZY: CRIU sets that flag for copied pages only, not for their neighbours.
        import numpy as np

        first = self.table[:, 0] // PAGE_SIZE
        continues = first[1:] == first[:-1] + self.table[:-1, 1]
        starts = np.flatnonzero(np.concatenate((np.ones(len(first[:1]), np.bool_), ~continues)))
        joined = self.table[starts]
        joined[:, 2] = PRESENT
        if len(starts):
            joined[:, 1] = np.add.reduceat(self.table[:, 1], starts)
        return PageMap(self.pages_id, joined)

    def without_ranges(self, edges: NDArray[np.uint64]) -> PageMap:
        """Return the page map without the pages in the ranges of these `edges`, as for `cut_runs`."""
        table = self.table
        row, first, count, is_between = cut_runs(table[:, 0] // PAGE_SIZE, table[:, 1], edges)
        left = table[row]
        left[:, 0], left[:, 1] = first * PAGE_SIZE, count
        return PageMap(self.pages_id, left[~is_between])


def cut_runs(
    first: NDArray[np.uint64], count: NDArray[np.uint64], edges: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.bool_]]:
    """Cut runs of pages, `count` pages from page `first` on, at the edges of ranges.

    `edges`: page numbers in ascending order: the first page of a range, the first page after it, the first page of the
    next range ... Returns for each piece, in order: its row, first page, number of pages, and whether it is in a range.
    """
    import numpy as np

    # A run makes one piece more than there are edges strictly inside it.
    end = first + count
    low = np.searchsorted(edges, first, side="right")
    pieces = np.maximum(np.searchsorted(edges, end, side="left") - low, 0) + 1
    row = np.repeat(np.arange(len(first)), pieces)
    nth = np.arange(len(row)) - (np.cumsum(pieces) - pieces)[row]
    at = low[row] + nth
    # One more edge, so that `at` is always an index. Its value is not used: a last piece ends with its run.
    bounds = np.append(edges, np.uint64(0))
    begins = np.where(nth == 0, first[row], bounds[np.maximum(at, 1) - 1])
    ends = np.where(nth == pieces[row] - 1, end[row], bounds[at])
    # Where two ranges touch, an edge occurs twice and makes an empty piece.
    some = np.flatnonzero(ends > begins)
    # After an odd number of edges a piece is inside a range.
    return row[some], begins[some], (ends - begins)[some], at[some] % 2 == 1


def pagemap_name(pid: int) -> str:
    """Return the name of a process's page map."""
    return f"pagemap-{pid}.img"


def is_pagemap(name: str) -> bool:
    """Return whether an image file of this name is a page map."""
    return _NAME.fullmatch(name) is not None


def is_parent_image(name: str) -> bool:
    """Return whether CRIU reads this image file from the parent of an incremental dump."""
    # CRIU compares the start of each process with the parent's dump_uptime (criu/mem.c, detect_pid_reuse), and looks up
    # in its page maps what it leaves to the parent (criu/page-xfer.c:278). It needs no pages file there (seen).
    return name == "inventory.img" or is_pagemap(name)


def read_pagemap(data: bytes, name: str = "pagemap.img") -> PageMap:
    """Decode a page map.

    Raises IntegrityError if it is damaged, if an entry is neither PRESENT nor IN_PARENT (a dump for a lazy restore),
    and if it has unknown fields or flags (pages compressed by a newer CRIU).
    """
    head, rest = read_head(data, name, magics.PAGEMAP)
    pages_id, table = head.required(1), _read_usual(rest)
    if table is not None:
        return PageMap(pages_id, table)
    records = read_image(data, name, magics.PAGEMAP).records
    return PageMap.of(pages_id, (_entry(record.payload, name) for record in records[1:]))


def write_pagemap(pagemap: PageMap) -> bytes:
    """Encode a page map: the inverse of `read_pagemap`."""
    head = Record(encode([(1, VARINT, pagemap.pages_id)]))
    records = [head]
    for vaddr, pages, flags in pagemap.entries:
        # CRIU before 4.2 reads only the 32-bit counts. CRIU 4.2 itself writes 0 for larger ones (criu/page-xfer.c,
        # write_pagemap_loc).
        old_count = pages if pages < _OLD_COUNTS else 0
        numbers = tuple(map(encode_varint, (vaddr, old_count, flags, pages)))
        # The tags of fields 1, 2, 4 and 5. `encode` takes twice as long (measured), and a map can have 100,000 entries.
        records.append(Record(b"\x08%b\x10%b\x20%b\x28%b" % numbers))
    return write_image(Image(magics.PAGEMAP, tuple(records)))


def _read_usual(rest: bytes) -> NDArray[np.uint64] | None:
    """Return the table if all entries have the form of today's CRIU; None if one has not."""
    import numpy as np

    # Padded, so that reads past the end of an entry stay inside.
    data = np.frombuffer(rest + bytes(4 * _VARINT_BYTES), np.uint8)
    # An entry begins with a size below 256 and the tag of the address. Nothing else in it looks like that.
    places = max(len(rest) - _SIZE_BYTES, 0)
    looks = (data[at : at + places] == octet for at, octet in ((1, 0), (2, 0), (3, 0), (4, _ADDRESS_TAG)))
    at = np.flatnonzero(reduce(operator.and_, looks))
    # The entries must fill the data without a gap.
    starts = np.concatenate(([0], at + _SIZE_BYTES + data[at]))
    if not np.array_equal(starts, np.append(at, len(rest))):
        return None
    address, old_count = _read_varints(data, at + _SIZE_BYTES + 1)
    _, behind = _read_varints(data, old_count + 1)
    flags = data[behind + 1].astype(np.uint64)
    count, end = _read_varints(data, behind + 3)
    is_usual = (
        (data[old_count] == _OLD_COUNT_TAG)
        & (data[behind] == _FLAGS_TAG)
        & np.isin(flags, (PRESENT, PRESENT | LAZY, IN_PARENT, IN_PARENT | LAZY))
        & (data[behind + 2] == _COUNT_TAG)
        & (end == starts[1:])
        & (address % PAGE_SIZE == 0)
        & (count <= (_ADDRESSES - 1 - address) // PAGE_SIZE + 1)
    )
    return np.stack((address, count, flags), axis=1) if is_usual.all() else None


def _read_varints(data: NDArray[np.uint8], at: NDArray[np.intp]) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """Return the varints at these offsets, and where each ends."""
    # One that is too long ends at 0, which is invalid.
    import numpy as np

    numbers, end = np.zeros(len(at), np.uint64), at.copy()
    continues = np.ones(len(at), np.bool_)
    for index in range(_VARINT_BYTES):
        octets = data[at + index]
        numbers |= np.where(continues, octets & 0x7F, 0).astype(np.uint64) << np.uint64(7 * index)
        end += continues
        continues &= octets >= 0x80
    end[continues] = 0
    return numbers, end


def _entry(payload: bytes, name: str) -> Entry:
    """Decode an entry of any form."""
    # Older CRIU had `in_parent` for flags and a 32-bit count (criu/pagemap.c:673).
    unknown = {number for number, _, _ in fields(payload, name)} - _KNOWN_FIELDS
    message = Message(payload, name)
    flags = message.uint(4, default=0 if message.uint(3) else PRESENT) | (IN_PARENT if message.uint(3) else 0)
    if unknown or flags & ~_KNOWN_FLAGS:
        what = f"field {min(unknown)}" if unknown else f"flags {flags:#x}"
        raise IntegrityError(
            f"{name}: an entry has {what}, which this crckpt does not know",
            hint="use a CRIU up to 4.2, or one without page compression",
        )
    entry = Entry(message.required(1), message.uint(5, default=message.uint(2)), flags)
    if entry.vaddr % PAGE_SIZE or entry.vaddr + entry.pages * PAGE_SIZE > _ADDRESSES:
        raise IntegrityError(f"{name}: {entry.pages} pages at {entry.vaddr:#x} are not in an address space")
    if entry.flags & (PRESENT | IN_PARENT) not in (PRESENT, IN_PARENT):
        raise IntegrityError(f"{name}: the pages at {entry.vaddr:#x} are not in these images (flags {entry.flags})")
    return entry
