"""`pagemap-PID.img` and `pagemap-shmem-ID.img`: which pages lie in `pages-N.img` (images/pagemap.proto).

`pages-N.img` holds, raw and in order, the pages of all entries that are PRESENT. Entries that are IN_PARENT have
theirs in the image directory behind the symlink `parent`. Source: criu/include/pagemap.h:133, criu/pagemap.c:670.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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

_KNOWN_FLAGS: Final = IN_PARENT | LAZY | PRESENT
_KNOWN_FIELDS: Final = frozenset({1, 2, 3, 4, 5})
_ADDRESSES: Final = 1 << 64
_NAME: Final = re.compile(r"pagemap-.+\.img")

# What CRIU 4 writes for an entry: its size, address, a compat count of 0, flags, count. Maps can have 100,000 of them:
# those that are all like that are read in one go.
_VARINT: Final = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
_VARINT_BYTES: Final = 9
_USUAL: Final = re.compile(rb"(.)\0\0\0\x08" + _VARINT + rb"\x10\0\x20([\x01\x03\x04\x06])\x28" + _VARINT, re.DOTALL)
_USUAL_BYTES: Final = 6
"""Of a usual entry, beside two varints and the size before it."""


class Entry(NamedTuple):
    """`pages` pages from the address `vaddr` (bytes, a multiple of the page size) on."""

    vaddr: int
    pages: int
    flags: int


class PageMap(Struct, frozen=True):
    """One process's, or one shared segment's, pages. `pages_id` is the N of `pages-N.img`."""

    pages_id: int
    entries: tuple[Entry, ...]

    @property
    def pages_name(self) -> str:
        """The file that holds the pages."""
        return f"pages-{self.pages_id}.img"

    @property
    def present(self) -> int:
        """How many pages that file holds."""
        return sum(entry.pages for entry in self.entries if entry.flags & PRESENT)


def is_pagemap(name: str) -> bool:
    """Whether an image file of that name is a page map."""
    return _NAME.fullmatch(name) is not None


def read_pagemap(data: bytes, name: str = "pagemap.img") -> PageMap:
    """Take a page map apart.

    Raises IntegrityError when it is damaged, when an entry's pages are neither PRESENT nor IN_PARENT (a dump for a
    lazy restore), and when it has fields or flags that are not known here (pages compressed by a newer CRIU).
    """
    head, rest = read_head(data, name, magics.PAGEMAP)
    entries = _usual(rest)
    if entries is None:
        records = read_image(data, name, magics.PAGEMAP).records
        entries = tuple(_entry(record.payload, name) for record in records[1:])
    return PageMap(head.required(1), entries)


def write_pagemap(pagemap: PageMap) -> bytes:
    """The inverse of `read_pagemap`, as CRIU 4.2 writes it."""
    head = Record(encode([(1, VARINT, pagemap.pages_id)]))
    return write_image(Image(magics.PAGEMAP, (head, *(Record(_payload(entry)) for entry in pagemap.entries))))


def _usual(rest: bytes) -> tuple[Entry, ...] | None:
    """Entries that are all as CRIU writes them today, and in order; None if one is not."""
    found = _USUAL.findall(rest)
    if not found:
        return None if rest else ()
    sizes, addresses, flags, counts = zip(*found, strict=True)
    lengths = [len(address) + len(count) + _USUAL_BYTES for address, count in zip(addresses, counts, strict=True)]
    # Matches that leave nothing out follow each other from the start to the end.
    if b"".join(sizes) != bytes(lengths) or sum(lengths) + 4 * len(lengths) != len(rest):
        return None
    vaddr, pages = _numbers(addresses), _numbers(counts)
    if (vaddr % PAGE_SIZE).any() or (pages > (_ADDRESSES - 1 - vaddr) // PAGE_SIZE + 1).any():
        return None
    return tuple(map(Entry, vaddr.tolist(), pages.tolist(), b"".join(flags)))


def _numbers(varints: Sequence[bytes]) -> NDArray[np.uint64]:
    import numpy as np

    octets = np.frombuffer(b"".join([one.ljust(_VARINT_BYTES, b"\0") for one in varints]), np.uint8)
    numbers = np.zeros(len(varints), np.uint64)
    for at, column in enumerate(octets.reshape(-1, _VARINT_BYTES).T):
        numbers |= (column & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * at)
    return numbers


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
    numbers = (varint(entry.vaddr), varint(entry.flags), varint(entry.pages))
    return b"\x08%b\x10\x00\x20%b\x28%b" % numbers
