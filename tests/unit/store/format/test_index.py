"""Indexes: what is written is read, and what is unreadable is refused by name."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from msgspec.structs import astuple

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.store.format.extents import EXTENT, ZERO
from crckpt.store.format.index import FILE, PAGES, Index, StoredFile, decode_index, encode_index

EXTENTS = np.array([(5, 2, 0, 7), (9, 1, ZERO, 0), (10, 4, 1, 0)], EXTENT)
FILES = (
    StoredFile("core-1.img", FILE, 3 * 4096 - 1, "", EXTENTS[:2]),
    StoredFile("empty.img", FILE, 0, "", EXTENTS[:0]),
    StoredFile("pages-1.img", PAGES, 4 * 4096, "pagemap-1.img", EXTENTS[2:]),
)


def _same(index: Index) -> bool:
    return [astuple(file)[:4] for file in index.files] == [astuple(file)[:4] for file in FILES] and all(
        np.array_equal(one.extents, two.extents) for one, two in zip(index.files, FILES, strict=True)
    )


def _made(header: object, rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + rest


HEADER = [
    {"name": file.name, "kind": file.kind, "bytes": file.bytes, "pagemap": file.pagemap, "extents": len(file.extents)}
    for file in FILES
]


def test_index_round_trips() -> None:
    assert _same(decode_index(encode_index(Index(FILES)), 2))
    assert decode_index(encode_index(Index(())), 0).files == ()


def test_index_with_an_unknown_coding_is_refused() -> None:
    with pytest.raises(StoreUnusable, match="coded as 'rows'"):
        decode_index(_made({"files": HEADER, "coding": "rows"}, b""), 2)


@pytest.mark.parametrize("header", [[], {}, {"files": 3}, {"files": HEADER}, {"files": [3], "coding": "columns"}])
def test_index_with_an_invalid_header_is_refused(header: object) -> None:
    with pytest.raises(IntegrityError, match="is unreadable"):
        decode_index(_made(header, EXTENTS.tobytes()), 2)


def test_index_that_refers_to_missing_packs_is_refused() -> None:
    with pytest.raises(IntegrityError, match="is inconsistent"):
        decode_index(encode_index(Index(FILES)), 1)
