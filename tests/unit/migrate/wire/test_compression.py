"""Data is compressed where that makes a connection faster, and nowhere else."""

from __future__ import annotations

import os

import pytest
import zstandard
from connections import PackCollector, connected, in_thread

from crckpt.migrate.wire.frames import MOST_DATA, BadFrame, Compressor, unpack
from crckpt.migrate.wire.messages import PackMessage, Sent

SLOW, FAST = 2e6, 8e9  # bytes per second
PIECE = 256 << 10
WORDS = b"".join(b"%d words that are much alike; " % number for number in range(10_000))[:PIECE]


def test_slow_connection_gets_compressed_data() -> None:
    compressor = Compressor()
    for _ in range(10):
        compressed = compressor.compress(WORDS, SLOW)
        assert compressed is not None
        assert len(compressed) < len(WORDS) / 2
        assert unpack(memoryview(compressed)) == WORDS


@pytest.mark.parametrize("speed", [None, FAST])
def test_fast_or_unmeasured_connection_is_not_compressed(speed: float | None) -> None:
    assert Compressor().compress(WORDS, speed) is None


def test_incompressible_data_is_sent_unchanged() -> None:
    assert Compressor().compress(os.urandom(PIECE), SLOW) is None


def test_compression_is_tried_less_often_if_it_does_not_help() -> None:
    """The connection is nearly as fast as zstd. First random bytes are sent, then words."""
    compressor, content, speed = Compressor(), os.urandom(PIECE), 2**30 - 1.0
    assert compressor.compress(content, speed) is None
    skipped = 0
    while compressor.compress(WORDS, speed) is None and skipped < 1_000_000:
        skipped += 1
    # The first try took longer than the connection needs for the piece.
    assert skipped >= 1


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (b"", "damaged"),
        (b"no frame of zstd", "damaged"),
        (zstandard.ZstdCompressor().compress(WORDS)[:-1], "damaged|instead of"),
        (zstandard.ZstdCompressor().compress(bytes(MOST_DATA + 1)), f"compressed data of {MOST_DATA + 1} bytes"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(WORDS), "compressed data of"),
        (zstandard.ZstdCompressor().compress(b""), "compressed data of 0 bytes"),
    ],
)
def test_compressed_data_is_checked_before_allocation(payload: bytes, what: str) -> None:
    with pytest.raises(BadFrame, match=what):
        unpack(memoryview(payload))


def test_slow_connection_carries_more_than_its_bytes() -> None:
    content, collected = WORDS * 8, PackCollector()
    with connected(bandwidth=4 << 20) as (source, destination), destination.receiving(collected):

        def send() -> None:
            source.send(PackMessage(3, "cd" * 32, len(content)))
            for at in range(0, len(content), source.data_bytes):
                source.send_data(3, content[at : at + source.data_bytes])
            source.send(Sent())

        sending = in_thread(send)
        destination.receive(Sent)
        sending.join()
        assert collected.content == content
        assert source.sent_bytes < len(content) / 2
