"""Indexes: the files of a checkpoint, and the extents of each, as columns that compress well.

Where single pages are rewritten, columns take a tenth of the bytes.
"""

from __future__ import annotations

import json
import struct
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard
from msgspec import Meta, Struct
from msgspec.structs import asdict

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.model import PAGE_SIZE
from crckpt.store.documents import decode
from crckpt.store.format.extents import EXTENT, ZERO, Extents
from crckpt.store.format.pack import FRAME_PAGES, MOST_FRAMES
from crckpt.store.layout import IMAGE

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

# The lowest level that codes single bytes by their frequency.
_LEVEL: Final = 3

# Bytes of an extent before they are compressed.
_BYTES: Final = 4 * 8

_Signed = npt.NDArray[np.int64]


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
    header = [asdict(file) | {"extents": len(file.extents)} for file in index.files]
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


def decode_index(content: bytes, packs: int) -> Index:
    """Decode an index; `packs` is how many packs it can refer to. Raises IntegrityError if it contradicts itself."""
    # The number of extents is checked before memory is taken for them.
    try:
        (length,) = _LENGTH.unpack_from(content)
        header = decode(content[_LENGTH.size : _LENGTH.size + length], _Header, "the index")
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


def encode_columns(extents: Extents) -> bytes:
    """Encode extents; `decode_columns` is the inverse."""
    # Numbers become steps from the most likely number.
    first, count, page = (extents[name].astype(np.int64) for name in ("first", "count", "page"))
    steps = np.zeros(len(page), np.int64)
    for some in _group_by_pack(extents["pack"]):
        steps[some] = _steps(page[some], count[some])
    columns = (
        _fold(_steps(first, count)),
        # Most extents have one page: 0.
        (count - 1).astype(np.uint64),
        # Pages of zeros, whose pack is 0xFFFFFFFF, become 0.
        (extents["pack"] + np.uint32(1)).astype(np.uint64),
        _fold(steps),
    )
    # Bytes of equal weight together: the high ones are nearly all zero, the low ones similar.
    planes = b"".join(column.astype("<u8").view(np.uint8).reshape(-1, 8).T.tobytes() for column in columns)
    compressed: bytes = zstandard.ZstdCompressor(level=_LEVEL).compress(planes)
    return compressed


def decode_columns(content: bytes, extents: int) -> Extents:
    """Decode `extents` extents. Raises IntegrityError."""
    size = extents * _BYTES
    try:
        # zstd takes as much memory as the frame declares, whatever max_output_size is.
        if zstandard.frame_content_size(content) != size:
            raise IntegrityError("the index is inconsistent")
        planes = zstandard.ZstdDecompressor().decompress(content, max_output_size=size)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"the index is unreadable: {error}") from error
    if len(planes) != size:
        raise IntegrityError("the index is inconsistent")
    bytes_ = np.frombuffer(planes, np.uint8).reshape(4, 8, extents)
    first, count, pack, page = map(_join_planes, bytes_)
    found = np.empty(extents, EXTENT)
    found["count"], found["pack"] = count + np.uint64(1), pack.astype(np.uint32) - np.uint32(1)
    counts = found["count"].astype(np.int64)
    found["first"] = _sum_steps(_unfold(first), counts).astype(np.uint64)
    pages, steps = np.zeros(extents, np.int64), _unfold(page)
    for some in _group_by_pack(found["pack"]):
        pages[some] = _sum_steps(steps[some], counts[some])
    found["page"] = pages.astype(np.uint64)
    return found


def _join_planes(planes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Join the bytes of numbers, the lowest first."""
    # Most planes are all zero: they need no arithmetic.
    found: npt.NDArray[np.uint64] = planes[0].astype(np.uint64)
    for at, plane in enumerate(planes[1:], 1):
        if plane.any():
            found |= plane.astype(np.uint64) << np.uint64(8 * at)
    return found


def _group_by_pack(pack: npt.NDArray[Any]) -> list[npt.NDArray[np.intp]]:
    """Return which extents lie in each pack; zeros lie nowhere."""
    key = pack + np.uint32(1)
    # Numbers of 16 bits are sorted several times as fast.
    order = np.argsort(key.astype(np.uint16) if key.max(initial=0) < 1 << 16 else key, kind="stable")
    ends = np.flatnonzero(np.diff(pack[order])) + 1
    return [some for some in np.split(order, ends) if len(some) and pack[some[0]] != ZERO]


def _steps(start: _Signed, count: _Signed) -> _Signed:
    """Return the steps from the end of each extent to the start of the next, modulo 2^64."""
    steps = start.copy()
    steps[1:] -= start[:-1] + count[:-1]
    return steps


def _sum_steps(steps: _Signed, count: _Signed) -> _Signed:
    whole = np.cumsum(steps)
    whole[1:] += np.cumsum(count)[:-1]
    return whole


def _fold(signed: _Signed) -> npt.NDArray[np.uint64]:
    """Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ...: numbers near zero become small."""
    return ((signed << 1) ^ (signed >> 63)).view(np.uint64)


def _unfold(numbers: npt.NDArray[np.uint64]) -> _Signed:
    return ((numbers >> np.uint64(1)) ^ (np.uint64(0) - (numbers & np.uint64(1)))).view(np.int64)
