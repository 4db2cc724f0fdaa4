"""Encode extents as columns that compress well: where single pages are rewritten, they take a tenth of the bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import zstandard

from crckpt.errors import IntegrityError
from crckpt.store.format.extents import EXTENT, ZERO, Extents

# The lowest level that codes single bytes by their frequency.
_LEVEL: Final = 3

# Bytes of an extent before they are compressed.
_BYTES: Final = 4 * 8

_Signed = npt.NDArray[np.int64]


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
