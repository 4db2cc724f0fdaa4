"""The recorded images with generated pages: they were recorded without pages."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from checkout import TESTS
from image_sets import Area, ImageSet, page

from crckpt.images.pagemap import read_pagemap
from crckpt.images.tree import ImageProcess, ImageTree, read_tree
from crckpt.model import PAGE_SIZE

TREE = TESTS / "data/images/tree"
IMAGES = {path.name: path.read_bytes() for path in TREE.iterdir()}
RECORDED = read_tree(IMAGES.__getitem__, IMAGES)
PIDS = [process.pid for process in RECORDED.processes if process.memory is not None]
_MAPS = {name: read_pagemap(IMAGES[name], name) for name in IMAGES if name.startswith("pagemap-")}


def _make_page(name: str, number: int) -> bytes:
    """The page of that number (address / PAGE_SIZE) in a page map; every ninth is zero."""
    return page(0 if number % 9 == 0 else zlib.crc32(f"{name} {number}".encode()) or 1)


def _pages_of(name: str) -> dict[int, bytes]:
    """All pages that a page map has, by number."""
    numbers = (entry.vaddr // PAGE_SIZE + at for entry in _MAPS[name].entries for at in range(entry.pages))
    return {number: _make_page(name, number) for number in numbers}


def image_set(pages: Mapping[str, Mapping[int, bytes]]) -> ImageSet:
    """The recorded images, with these pages in their page maps."""
    maps = {name: [Area(at * PAGE_SIZE, (content,)) for at, content in held.items()] for name, held in pages.items()}
    return ImageSet(maps, {name: content for name, content in IMAGES.items() if name not in maps})


PAGES = {name: _pages_of(name) for name in _MAPS}


def process_of(tree: ImageTree, pid: int) -> ImageProcess:
    """The process of that PID."""
    return next(process for process in tree.processes if process.pid == pid)
