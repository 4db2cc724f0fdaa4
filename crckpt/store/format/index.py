"""Indexes: the files of a checkpoint, and the extents of each."""

from __future__ import annotations

import json
import struct
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.model import PAGE_SIZE
from crckpt.store.documents import decode
from crckpt.store.format.columns import decode_columns, encode_columns
from crckpt.store.format.extents import EXTENT, ZERO, Extents
from crckpt.store.format.pack import FRAME_PAGES, MOST_FRAMES
from crckpt.store.names import IMAGE

FILE: Final = "file"
PAGES: Final = "pages"
DETAILS: Final = "details"

_KINDS: Final = (FILE, PAGES, DETAILS)
_COLUMNS: Final = "columns"
_LENGTH: Final = struct.Struct("<I")

MOST_EXTENTS: Final = 1 << 25
"""Extents of a checkpoint: those of 128 GiB of memory in single pages. They take some 2 GiB while they are read."""

_LAST_NUMBER: Final = (1 << 64) // PAGE_SIZE
_LAST_PAGE: Final = MOST_FRAMES * FRAME_PAGES
_MOST_FILES: Final = 1 << 21
# The limit of one file, and of all together: 4 PiB. An index can be forged: 24 bytes declare 16 TiB of zeros.
_MOST_PAGES: Final = 1 << 40


class StoredFile(Struct, frozen=True):
    """A file of a checkpoint: its size in bytes and extents. `pagemap` names the page map that addresses PAGES."""

    name: str
    kind: str
    bytes: int
    pagemap: str
    extents: Extents

    @property
    def key(self) -> tuple[str, str]:
        """Names the same object in the next checkpoint, where pages-N.img may have another N."""
        return self.kind, self.pagemap or self.name


class Index(Struct, frozen=True):
    """All files of a checkpoint."""

    files: tuple[StoredFile, ...]

    def find(self, name: str, kinds: tuple[str, ...] = (FILE, PAGES)) -> StoredFile | None:
        """Find the file of that name and of one of those kinds."""
        return next((file for file in self.files if file.name == name and file.kind in kinds), None)


def encode_index(index: Index) -> bytes:
    """Encode a length, a JSON header, and all extents in the order of the files, as columns."""
    header = [
        {
            "name": file.name,
            "kind": file.kind,
            "bytes": file.bytes,
            "pagemap": file.pagemap,
            "extents": len(file.extents),
        }
        for file in index.files
    ]
    text = json.dumps({"coding": _COLUMNS, "files": header}, sort_keys=True, separators=(",", ":")).encode()
    extents = np.concatenate([np.empty(0, EXTENT), *(file.extents for file in index.files)])
    return _LENGTH.pack(len(text)) + text + encode_columns(extents)


class _Entry(Struct, frozen=True):
    name: str
    kind: str
    bytes: Annotated[int, Meta(ge=0, le=_MOST_PAGES * PAGE_SIZE)]
    pagemap: str
    extents: Annotated[int, Meta(ge=0, le=MOST_EXTENTS)]

    @property
    def pages(self) -> int:
        return -(-self.bytes // PAGE_SIZE)


class _Header(Struct, frozen=True):
    coding: str
    files: Annotated[tuple[_Entry, ...], Meta(max_length=_MOST_FILES)]


_HEADER: Final = msgspec.json.Decoder(_Header)


def decode_index(content: bytes, packs: int) -> Index:
    """Decode an index; `packs` is how many packs it can refer to. Raises IntegrityError if it contradicts itself."""
    # The number of extents is checked before memory is taken for them.
    try:
        (length,) = _LENGTH.unpack_from(content)
        header = decode(content[_LENGTH.size : _LENGTH.size + length], _HEADER, "the index")
    except (struct.error, msgspec.ValidationError) as error:
        raise IntegrityError(f"the index is unreadable: {error}") from error
    if header.coding != _COLUMNS:
        raise StoreUnusable(
            f"the index has extents coded as {header.coding!r}", hint="use the newest release of crckpt"
        )
    total = sum(entry.extents for entry in header.files)
    # An extent has at least one page.
    if total > MOST_EXTENTS or any(entry.extents > entry.pages for entry in header.files):
        raise IntegrityError(f"the index declares {total} extents, more than its files can have")
    if sum(entry.pages for entry in header.files) > _MOST_PAGES:
        raise IntegrityError("the index declares more pages than a checkpoint can have")
    extents = decode_columns(content[_LENGTH.size + length :], total)
    files: list[StoredFile] = []
    at = 0
    for entry in header.files:
        files.append(_make_stored_file(entry, extents[at : at + entry.extents]))
        at += entry.extents
    # Details are no image: an image may have the same name.
    names = {(file.kind == DETAILS, file.name) for file in files}
    # All have pages, in packs that exist, and numbers whose sums do not overflow.
    is_zero = extents["pack"] == ZERO
    fit = (extents["count"] > 0) & (extents["first"] <= _LAST_NUMBER)
    fit &= is_zero | ((extents["page"] <= _LAST_PAGE) & (extents["pack"] < packs))
    if at != len(extents) or len(names) != len(files) or not fit.all():
        raise IntegrityError("the index is inconsistent")
    return Index(tuple(files))


def _make_stored_file(entry: _Entry, extents: Extents) -> StoredFile:
    if entry.kind not in _KINDS:
        raise StoreUnusable(f"the index has a file of kind {entry.kind!r}", hint="use the newest release of crckpt")
    for name in (entry.name, *([entry.pagemap] if entry.pagemap else [])):
        if IMAGE.fullmatch(name) is None:
            raise IntegrityError(f"{name!r} in the index is not an image name")
    # 2^25 counts of 32 bits do not overflow.
    if int(extents["count"].sum(dtype=np.uint64)) != entry.pages:
        raise IntegrityError(f"the index has too few or too many pages of {entry.name}")
    return StoredFile(entry.name, entry.kind, entry.bytes, entry.pagemap, extents)
