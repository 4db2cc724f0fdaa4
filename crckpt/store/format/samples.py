"""Samples of fingerprints: from which packs equal pages may come. `crckpt.store` specifies the format. Pure."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

MAGIC: Final = b"CRCKSMP1"
KEY_ID: Final = 16
DIGEST: Final = 32
ENTRY: Final = 8
MOST_PACKS: Final = 1 << 24
"""A number of a pack in a file has 24 bits."""

_HEADER: Final = struct.Struct("<8s16sQQ")


class Samples(NamedTuple):
    """The content of a file of samples: `digests` and `entries` are the bytes of all, one after the other."""

    key_id: bytes
    digests: memoryview
    entries: memoryview

    def list_packs(self) -> list[str]:
        """Return the digests of the packs, in the order of their numbers."""
        return [self.digests[at : at + DIGEST].hex() for at in range(0, len(self.digests), DIGEST)]


def encode_samples(key_id: bytes, digests: bytes, entries: bytes) -> bytes:
    """Return the content of a file."""
    header = _HEADER.pack(MAGIC, key_id, len(digests) // DIGEST, len(entries) // ENTRY)
    return b"".join((header, digests, entries))


def decode_samples(content: memoryview) -> Samples | None:
    """Return the parts of a file's content; None if it is none, or cut short."""
    if len(content) < _HEADER.size:
        return None
    magic, key_id, packs, entries = _HEADER.unpack(content[: _HEADER.size])
    end = _HEADER.size + packs * DIGEST
    if magic != MAGIC or packs > MOST_PACKS or len(content) != end + entries * ENTRY:
        return None
    return Samples(key_id, content[_HEADER.size : end], content[end:])
