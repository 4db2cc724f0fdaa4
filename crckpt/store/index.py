"""Indexes: which files a checkpoint has, and the extents of each."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

import numpy as np
from msgspec import Struct

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.model import PAGE_SIZE
from crckpt.store.columns import decode_columns, encode_columns
from crckpt.store.extents import EXTENT, ZERO, Extents

FILE: Final = "file"
PAGES: Final = "pages"
DETAILS: Final = "details"

_KINDS: Final = (FILE, PAGES, DETAILS)
_COLUMNS: Final = "columns"
_LENGTH: Final = struct.Struct("<I")


class StoredFile(Struct, frozen=True):
    """A file of a checkpoint: its size in bytes and extents. `pagemap` names the page map that addresses PAGES."""

    name: str
    kind: str
    bytes: int
    pagemap: str
    extents: Extents

    @property
    def key(self) -> tuple[str, str]:
        """What names the same object in the next checkpoint, where pages-N.img may have another N."""
        return self.kind, self.pagemap or self.name


class Index(Struct, frozen=True):
    """All files of a checkpoint."""

    files: tuple[StoredFile, ...]

    def find(self, name: str, kinds: tuple[str, ...] = (FILE, PAGES)) -> StoredFile | None:
        """The file of that name and one of those kinds."""
        return next((file for file in self.files if file.name == name and file.kind in kinds), None)


def encode_index(index: Index) -> bytes:
    """A length, a JSON header, and all extents in the order of the files, as columns."""
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


def decode_index(content: bytes, packs: int) -> Index:
    """The inverse. `packs` is how many packs there are to refer to. Raises IntegrityError if it contradicts itself."""
    try:
        header, extents = _taken_apart(content)
        files: list[StoredFile] = []
        at = 0
        for entry in header["files"]:
            end = at + int(entry["extents"])
            files.append(_stored_file(entry, extents[at:end]))
            at = end
    except (struct.error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"the index cannot be read: {error}") from error
    names = {(file.kind == DETAILS, file.name) for file in files}
    if at != len(extents) or len(names) != len(files) or not _refer_to(extents, packs):
        raise IntegrityError("the index contradicts itself")
    return Index(tuple(files))


def _taken_apart(content: bytes) -> tuple[dict[str, Any], Extents]:
    (length,) = _LENGTH.unpack_from(content)
    start = _LENGTH.size + length
    header = json.loads(content[_LENGTH.size : start])
    if header["coding"] != _COLUMNS:
        raise StoreUnusable(f"the index has extents coded as {header['coding']!r}", hint="use the newest crckpt")
    return header, decode_columns(content[start:], sum(int(entry["extents"]) for entry in header["files"]))


def _stored_file(entry: dict[str, Any], extents: Extents) -> StoredFile:
    file = StoredFile(entry["name"], entry["kind"], int(entry["bytes"]), entry["pagemap"], extents)
    if file.kind not in _KINDS:
        raise StoreUnusable(f"the index has a file of kind {file.kind!r}", hint="use the newest crckpt")
    if file.name in ("", ".", "..") or "/" in file.name or "\0" in file.name:
        raise IntegrityError(f"the index names a file {file.name!r}")
    if int(extents["count"].sum(dtype=np.uint64)) != -(-file.bytes // PAGE_SIZE):
        raise IntegrityError(f"the index has too few or too many pages of {file.name}")
    return file


def _refer_to(extents: Extents, packs: int) -> bool:
    return bool(((extents["pack"] < packs) | (extents["pack"] == ZERO)).all())
