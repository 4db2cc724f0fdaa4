"""The zstd level of pages, which is the same each time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pytest
import zstandard

from crckpt.model import PAGE_SIZE
from crckpt.store.format.extents import Bytes
from crckpt.store.format.pack import FRAME_PAGES, Frame
from crckpt.store.write.compress import Frames

COUNT = 16


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def pages(kind: str) -> Bytes:
    """So many frames of hexadecimal digits, which compress by half, of noise, or of noise and then digits."""
    chance = random.Random(1)
    size = COUNT * FRAME_PAGES * PAGE_SIZE // 2
    digits, noise = chance.randbytes(size // 2).hex().encode(), chance.randbytes(size)
    content = {"digits": digits * 2, "noise, then digits": noise + digits}[kind]
    return np.frombuffer(content, np.uint8).reshape(-1, PAGE_SIZE)


def frames(pool: Executor, content: Bytes, level: int | None) -> list[Frame]:
    made = Frames(pool, level)
    return [*made.add(content, np.arange(len(content))), *made.finish()]


def total(made: list[Frame]) -> int:
    return sum(len(frame.stored) for frame in made)


def test_each_frame_is_compressed_at_its_best_level(pool: Executor) -> None:
    content = pages("noise, then digits")
    noise, digits = np.split(content, 2)
    found = frames(pool, content, None)
    assert found == [*frames(pool, noise, -1), *frames(pool, digits, 1)]
    assert total(found) < total(frames(pool, content, -1)), "the levels differ"


@pytest.mark.parametrize("level", [None, -7, -1, 0, 1, 2, 3, 19])
def test_compressed_frames_contain_their_pages_in_order(pool: Executor, level: int | None) -> None:
    content = pages("noise, then digits")[-3 * FRAME_PAGES - 5 :]
    made = frames(pool, content, level)
    unpacked = [zstandard.ZstdDecompressor().decompress(frame.stored) for frame in made]
    assert b"".join(unpacked) == content.tobytes()
    assert [frame.raw for frame in made] == [FRAME_PAGES * PAGE_SIZE] * 3 + [5 * PAGE_SIZE]


def test_compression_level_0_is_the_default_of_zstd(pool: Executor) -> None:
    content = pages("digits")[: 2 * FRAME_PAGES]
    assert frames(pool, content, 0) == frames(pool, content, 3)
