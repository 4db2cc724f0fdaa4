"""`pagemap-PID.img` and `pagemap-shmem-ID.img`: which pages lie in `pages-N.img` (images/pagemap.proto).

`pages-N.img` holds, raw and in order, the pages of all entries that are PRESENT. Entries that are IN_PARENT have
theirs in the image directory behind the symlink `parent`. Source: criu/include/pagemap.h:133, criu/pagemap.c:670.
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
from crckpt.images.wire import VARINT, Message, encode, fields, varint
from crckpt.model import PAGE_SIZE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IN_PARENT: Final = 1
LAZY: Final = 2
PRESENT: Final = 4

PARENT: Final = "parent"
"""The symlink in a set of images that leads to the set before."""

_KNOWN_FLAGS: Final = IN_PARENT | LAZY | PRESENT
_KNOWN_FIELDS: Final = frozenset({1, 2, 3, 4, 5})
_ADDRESSES: Final = 1 << 64
_NAME: Final = re.compile(r"pagemap-.+\.img")

# What CRIU writes for an entry from 4.2 on: its size (u32), address, a count for older ones (0), flags, count. Maps can
# have 100,000 of them: those that are all like that are read in one go.
_SIZE_BYTES: Final = 4
_ADDRESS_TAG, _OLD_COUNT_TAG, _FLAGS_TAG, _COUNT_TAG = 0x08, 0x10, 0x20, 0x28
_OLD_COUNTS: Final = 1 << 32
_VARINT_BYTES: Final = 9
"""Of numbers below 1 << 63: no larger one is read in one go."""


class Entry(NamedTuple):
    """`pages` pages from the address `vaddr` (bytes, a multiple of the page size) on."""

    vaddr: int
    pages: int
    flags: int


class PageMap(Struct, frozen=True, eq=False):
    """One process's, or one shared segment's, pages. `pages_id` is the N of `pages-N.img`.

    `table` has a row for each entry, with the columns of `Entry`.
    """

    pages_id: int
    table: NDArray[np.uint64]

    @classmethod
    def of(cls, pages_id: int, entries: Iterable[Entry]) -> PageMap:
        """A page map of these entries."""
        import numpy as np

        return cls(pages_id, np.array(list(entries), np.uint64).reshape(-1, len(Entry._fields)))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries in order."""
        return tuple(Entry(*row) for row in self.table.tolist())

    @property
    def pages_name(self) -> str:
        """The file that holds the pages."""
        return f"pages-{self.pages_id}.img"

    @property
    def present(self) -> int:
        """How many pages that file holds."""
        return sum(self.table[self.with_flag(PRESENT), 1].tolist())

    def with_flag(self, flag: int) -> NDArray[np.bool_]:
        """Which entries have this flag."""
        found: NDArray[np.bool_] = (self.table[:, 2] & flag) != 0
        return found

    def join(self) -> PageMap:
        """The same pages, all PRESENT, in as few entries as may be.

        That a page may be LAZY is left out: CRIU tells it of those that it has copied, not of others beside them.
        """
        import numpy as np

        first = self.table[:, 0] // PAGE_SIZE
        goes_on = first[1:] == first[:-1] + self.table[:-1, 1]
        starts = np.flatnonzero(np.concatenate((np.ones(len(first[:1]), np.bool_), ~goes_on)))
        joined = self.table[starts]
        joined[:, 2] = PRESENT
        if len(starts):
            joined[:, 1] = np.add.reduceat(self.table[:, 1], starts)
        return PageMap(self.pages_id, joined)

    def without_ranges(self, edges: NDArray[np.uint64]) -> PageMap:
        """What is left of it without the pages in the ranges that have these `edges`: see `cut_runs`."""
        table = self.table
        row, first, count, is_between = cut_runs(table[:, 0] // PAGE_SIZE, table[:, 1], edges)
        left = table[row]
        left[:, 0], left[:, 1] = first * PAGE_SIZE, count
        return PageMap(self.pages_id, left[~is_between])


def cut_runs(
    first: NDArray[np.uint64], count: NDArray[np.uint64], edges: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.bool_]]:
    """Runs of `count` pages from page `first` on, cut at the edges.

    The edges are numbers of pages in ascending order: at which a range begins, before which it ends, at which the next
    one begins. For each piece, in order: the row it is of, its first page, how many it has, whether it is in a range.
    """
    import numpy as np

    end = first + count
    low = np.searchsorted(edges, first, side="right")
    pieces = np.maximum(np.searchsorted(edges, end, side="left") - low, 0) + 1
    row = np.repeat(np.arange(len(first)), pieces)
    nth = np.arange(len(row)) - (np.cumsum(pieces) - pieces)[row]
    at = low[row] + nth
    bounds = np.append(edges, np.uint64(0))
    begins = np.where(nth == 0, first[row], bounds[np.maximum(at, 1) - 1])
    ends = np.where(nth == pieces[row] - 1, end[row], bounds[at])
    some = np.flatnonzero(ends > begins)
    return row[some], begins[some], (ends - begins)[some], at[some] % 2 == 1


def pagemap_name(pid: int) -> str:
    """The page map of a process."""
    return f"pagemap-{pid}.img"


def is_pagemap(name: str) -> bool:
    """Whether an image file of that name is a page map."""
    return _NAME.fullmatch(name) is not None


def is_parent_image(name: str) -> bool:
    """Whether CRIU reads an image file of that name of the set before an incremental one."""
    return name == "inventory.img" or is_pagemap(name)


def read_pagemap(data: bytes, name: str = "pagemap.img") -> PageMap:
    """Take a page map apart.

    Raises IntegrityError when it is damaged, when an entry's pages are neither PRESENT nor IN_PARENT (a dump for a
    lazy restore), and when it has fields or flags that are not known here (pages compressed by a newer CRIU).
    """
    head, rest = read_head(data, name, magics.PAGEMAP)
    pages_id, table = head.required(1), _usual(rest)
    if table is not None:
        return PageMap(pages_id, table)
    records = read_image(data, name, magics.PAGEMAP).records
    return PageMap.of(pages_id, (_entry(record.payload, name) for record in records[1:]))


def write_pagemap(pagemap: PageMap) -> bytes:
    """The inverse of `read_pagemap`, with counts for any CRIU: before 4.2 it knows those of 32 bits only."""
    head = Record(encode([(1, VARINT, pagemap.pages_id)]))
    return write_image(Image(magics.PAGEMAP, (head, *(Record(_payload(entry)) for entry in pagemap.entries))))


def _usual(rest: bytes) -> NDArray[np.uint64] | None:
    """The table of entries that are all as CRIU writes them today, and in order; None if one is not."""
    import numpy as np

    # Beyond the end there is something to look at, too.
    data = np.frombuffer(rest + bytes(4 * _VARINT_BYTES), np.uint8)
    # Where an entry may begin: with a size below 256, and the tag of the address. Nothing else in them looks like that.
    places = max(len(rest) - _SIZE_BYTES, 0)
    looks = (data[at : at + places] == octet for at, octet in ((1, 0), (2, 0), (3, 0), (4, _ADDRESS_TAG)))
    at = np.flatnonzero(reduce(operator.and_, looks))
    # Those that leave nothing out follow each other from the start to the end.
    starts = np.concatenate(([0], at + _SIZE_BYTES + data[at]))
    if not np.array_equal(starts, np.append(at, len(rest))):
        return None
    address, old_count = _numbers(data, at + _SIZE_BYTES + 1)
    _, behind = _numbers(data, old_count + 1)
    flags = data[behind + 1].astype(np.uint64)
    count, end = _numbers(data, behind + 3)
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


def _numbers(data: NDArray[np.uint8], at: NDArray[np.intp]) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """The varints at these places, and where each ends; those that are too long end where none may."""
    import numpy as np

    numbers, end = np.zeros(len(at), np.uint64), at.copy()
    goes_on = np.ones(len(at), np.bool_)
    for place in range(_VARINT_BYTES):
        octets = data[at + place]
        numbers |= np.where(goes_on, octets & 0x7F, 0).astype(np.uint64) << np.uint64(7 * place)
        end += goes_on
        goes_on &= octets >= 0x80
    end[goes_on] = 0
    return numbers, end


def _entry(payload: bytes, name: str) -> Entry:
    """An entry of any form; older CRIUs had `in_parent` for flags and a 32-bit count (criu/pagemap.c:670)."""
    unknown = {number for number, _, _ in fields(payload, name)} - _KNOWN_FIELDS
    message = Message(payload, name)
    flags = message.uint(4, default=0 if message.flag(3) else PRESENT) | (IN_PARENT if message.flag(3) else 0)
    if unknown or flags & ~_KNOWN_FLAGS:
        what = f"field {min(unknown)}" if unknown else f"flags {flags:#x}"
        raise IntegrityError(
            f"{name}: an entry has {what}, which this crckpt does not know",
            hint="use a CRIU up to 4.2, or one without page compression",
        )
    entry = Entry(message.required(1), message.uint(5, default=message.uint(2)), flags)
    if entry.vaddr % PAGE_SIZE or entry.vaddr + entry.pages * PAGE_SIZE > _ADDRESSES:
        raise IntegrityError(f"{name}: {entry.pages} pages at {entry.vaddr:#x} are no pages of a process")
    if entry.flags & (PRESENT | IN_PARENT) not in (PRESENT, IN_PARENT):
        raise IntegrityError(f"{name}: the pages at {entry.vaddr:#x} are not in these images (flags {entry.flags})")
    return entry


def _payload(entry: Entry) -> bytes:
    old_count = entry.pages if entry.pages < _OLD_COUNTS else 0
    numbers = (varint(entry.vaddr), varint(old_count), varint(entry.flags), varint(entry.pages))
    return b"\x08%b\x10%b\x20%b\x28%b" % numbers
