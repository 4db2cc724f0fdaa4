"""Data that zstd compresses on the way, where the connection is slower than zstd.

Packs are compressed already: another level, or all pages in one stream, saves little (docs/internals/migrate.md). Files
that are sent are not. So nobody chooses: what is saved is measured, piece by piece.
"""

from __future__ import annotations

import time
from typing import Final

import zstandard

from crckpt.migrate.wire.frames import MOST_DATA, BadFrame

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
