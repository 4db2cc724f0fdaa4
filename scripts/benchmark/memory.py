"""Measure the memory that it takes to store and to read back images of many gigabytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmark.commands import run
from benchmark.peak_memory import ADDRESS
from benchmark.report import Row
from benchmark.setting import MEBIBYTE, Setting
from crckpt.images.pagemap import PRESENT, Entry, PageMap, write_pagemap

BOUND_BYTES = 512 * MEBIBYTE
_PAGE = 4096
_REAL_MIB = 4096
_SPARSE_MIB = 8192
# In the sparse images one page of this many is not zero.
_FILLED_EVERY = 32


def rows(setting: Setting) -> Iterator[Row]:
    """Return rows for each kind of images: for storing, for reading back, and for filling memory with them."""
    for what, fill, mebibytes in (("real pages", _real, _REAL_MIB), ("sparse pages", _sparse, _SPARSE_MIB)):
        with setting.fresh() as directory:
            images = directory / "images"
            images.mkdir()
            pages = mebibytes * MEBIBYTE // _PAGE
            (images / "pagemap-1.img").write_bytes(write_pagemap(PageMap.of(1, (Entry(ADDRESS, pages, PRESENT),))))
            fill(images / "pages-1.img", pages)
            for act in ("ingest", "read", "place"):
                size = str(mebibytes * MEBIBYTE)
                found = run([sys.executable, "-m", "benchmark.peak_memory", act, directory / "store", images, size])
                what_else = f"{act} {mebibytes >> 10} GiB of {what}: memory besides the images"
                yield Row("memory", what_else, "B", (float(found),), bound=float(BOUND_BYTES))


def _real(path: Path, pages: int) -> None:
    """Return pages that all differ, and of which a third does not compress."""
    rng = np.random.default_rng(1)
    at_once = 4096
    with path.open("wb") as file:
        for _ in range(0, pages, at_once):
            content = np.zeros((at_once, _PAGE), np.uint8)
            content[:, : _PAGE // 3] = rng.integers(0, 256, (at_once, _PAGE // 3), np.uint8)
            file.write(content.tobytes())


def _sparse(path: Path, pages: int) -> None:
    rng = np.random.default_rng(2)
    with path.open("wb") as file:
        file.truncate(pages * _PAGE)
        for page in range(0, pages, _FILLED_EVERY):
            file.seek(page * _PAGE)
            file.write(rng.bytes(_PAGE))
