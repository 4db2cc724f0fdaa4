"""The frames of a connection: what is sent is cut into frames, and each is checked before it is used. Pure.

Numbers are little endian, without padding::

    length of the payload u32, kind u8, channel u16, CRC-32 of these and of the payload u32, payload

Where the connection is slower than zstd, zstd compresses data on the way. Packs are compressed already: another level,
or all pages in one stream, saves little (docs/internals/migrate.md). Files that are sent are not. So nobody chooses:
what is saved is measured, piece by piece.
"""

from __future__ import annotations

import struct
import time
import zlib
from typing import Final

import zstandard
from msgspec import Struct

from crckpt.migrate.wire.messages import MOST_CHANNELS

MESSAGE: Final = 1
"""A message, or its last part."""
DATA: Final = 2
"""Bytes of what a message has announced for this channel."""
PART: Final = 3
"""The beginning of a message that is larger than a frame; more parts, then MESSAGE follow."""
BEAT: Final = 4
"""A heartbeat, without payload."""
PACKED: Final = 5
"""DATA that is compressed (`compression`)."""

MOST_DATA: Final = 1 << 20
MOST_PAYLOAD: Final = MOST_DATA + 64

_BEGIN: Final = struct.Struct("<IBH")
_HEADER: Final = struct.Struct("<IBHI")
HEADER_BYTES: Final = _HEADER.size

NAMES: Final = {
    MESSAGE: "a message",
    DATA: "data",
    PART: "a part of a message",
    BEAT: "a heartbeat",
    PACKED: "compressed data",
}


class Header(Struct, frozen=True):
    """The header of a frame."""

    length: int
    kind: int
    channel: int
    crc: int


class BadFrame(ValueError):
    """A frame that cannot have been sent by crckpt, or was changed on the way; the text says what is wrong."""


def make_frame(kind: int, payload: bytes | memoryview = b"", channel: int = 0) -> tuple[bytes, bytes | memoryview]:
    """Return the header of a frame, and its payload."""
    header = Header(len(payload), kind, channel, 0)
    return _HEADER.pack(len(payload), kind, channel, make_checksum(header, payload)), payload


def read_header(content: bytes | memoryview) -> Header:
    """Decode a header. Raises BadFrame for one that nobody sends: its payload must not be read."""
    header = Header(*_HEADER.unpack(content))
    name = NAMES.get(header.kind)
    if name is None:
        raise BadFrame(f"a frame of the unknown kind {header.kind}")
    if header.length > MOST_PAYLOAD:
        raise BadFrame(f"{name} with {header.length} bytes in a frame, more than {MOST_PAYLOAD}")
    if header.kind == BEAT and header.length:
        raise BadFrame(f"{name} with {header.length} bytes")
    if header.channel >= MOST_CHANNELS or (header.channel and header.kind not in (DATA, PACKED)):
        raise BadFrame(f"{name} on channel {header.channel}")
    return header


def make_checksum(header: Header, payload: bytes | memoryview) -> int:
    """Make the CRC of a frame."""
    return zlib.crc32(payload, zlib.crc32(_BEGIN.pack(header.length, header.kind, header.channel)))


# Of programs and libraries it leaves 39 % of the bytes at 280 MB/s (level 1: 42 % at 420 MB/s; level 9: 37 % at 60).
_LEVEL: Final = 3
# Bytes per second. No processor compresses faster: on a faster connection nothing is tried.
_FASTEST: Final = 1 << 30
# The share of its time that a connection may wait for tries that do not pay.
_TRIES: Final = 0.05


class Compressor:
    """Compresses pieces of data if that makes a connection faster."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL)
        self._skipped_s = 0.0

    def compress(self, content: memoryview | bytes, bytes_per_s: float | None) -> bytes | None:
        """Compress a piece for a connection of this speed; None to send it as it is. None: the speed is not known."""
        if bytes_per_s is None or bytes_per_s >= _FASTEST:
            return None
        if self._skipped_s > 0:
            self._skipped_s -= len(content) / bytes_per_s
            return None
        began = time.perf_counter()
        compressed: bytes = self._zstd.compress(content)
        spent_s = time.perf_counter() - began
        if (len(content) - len(compressed)) / bytes_per_s > spent_s:
            return compressed
        self._skipped_s = spent_s / _TRIES
        return compressed if len(compressed) < len(content) else None


def unpack(payload: memoryview) -> memoryview:
    """Unpack what `compress` has returned. Raises BadFrame, before memory is taken for what is no such piece."""
    try:
        size = zstandard.frame_content_size(payload)
        if not 0 < size <= MOST_DATA:
            raise BadFrame(f"compressed data of {size} bytes")
        # A thread must not share it.
        content = zstandard.ZstdDecompressor().decompress(payload, max_output_size=size)
    except zstandard.ZstdError as error:
        raise BadFrame(f"compressed data that is damaged: {error}") from error
    if len(content) != size:
        raise BadFrame(f"compressed data of {len(content)} bytes instead of {size}")
    return memoryview(content)
