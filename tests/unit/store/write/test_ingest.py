"""The memory that an ingest takes, as Python and numpy allocate it, hardly grows with the images."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from checkout import SUPPORT
from image_sets import (
    described,
    of_pages,
    open_store,
    packs,
    write_set,
)

from crckpt.images.pagemap import PRESENT, Entry, PageMap, write_pagemap
from crckpt.model import PAGE_SIZE
from crckpt.store import Checkpoint, Repository, ingest

MOST_BYTES_PER_PAGE = 80
"""Bytes for each page that there is more of: two fingerprints, of it and of the parent's page, take 32 at most each."""

FIXED_BYTES = 60 << 20
"""Bytes for buffers, and for frames that wait for their turn."""

INGEST_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from image_sets import described
from crckpt.store import Repository, ingest
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
ingest(Repository.open(Path(sys.argv[1])), Path(sys.argv[2]), described())
"""


def _written(directory: Path, real: int, sparse: int) -> Path:
    """A process with `real` different pages, and then `sparse` that are a hole in the file, in areas of 512."""
    directory.mkdir()
    total = real + sparse
    areas = pairwise([*range(0, total, 512), total])
    entries = tuple(Entry((first + first // 512) * PAGE_SIZE, end - first, PRESENT) for first, end in areas)
    (directory / "pagemap-100.img").write_bytes(write_pagemap(PageMap.of(1, entries)))
    with (directory / "pages-1.img").open("wb") as file:
        for first in range(0, real, 1024):
            pages = np.zeros((min(1024, real - first), PAGE_SIZE // 8), np.uint64)
            pages[:, 7] = np.arange(first, first + len(pages)) + 1
            file.write(pages.data)
        file.truncate(total * PAGE_SIZE)
    return directory


def _peak(act: Callable[[], Checkpoint]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _peaks(repository: Repository, images: Path) -> tuple[int, int]:
    """The peaks of memory of a first checkpoint, and of one with a parent."""
    first = _peak(lambda: ingest(repository, images, described(images.name)))
    return first, _peak(lambda: ingest(repository, images, described(images.name)))


@pytest.mark.parametrize(("real", "sparse"), [(40_000, 0), (8_000, 150_000)])
def test_memory_of_a_commit_hardly_grows_with_the_images(real: int, sparse: int, tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    ingest(repository, _written(tmp_path / "warm-up", 10, 0), described("warm-up"))
    small = _peaks(repository, _written(tmp_path / "small", 8_000, 0))
    large = _peaks(repository, _written(tmp_path / "large", real, sparse))
    assert max(*small, *large) < FIXED_BYTES
    for less, more in zip(small, large, strict=True):
        assert more - less < MOST_BYTES_PER_PAGE * (real + sparse - 8_000)


def test_full_disk_leaves_no_checkpoint(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    images = write_set(tmp_path / "images", of_pages(*range(1, 2000)))
    command = [sys.executable, "-c", INGEST_ON_A_FULL_DISK, str(repository.root), str(images), str(SUPPORT)]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert "File too large" in ended.stderr.splitlines()[-1]
    assert repository.checkpoints() == ()
    assert packs(repository) == []
    assert list((repository.root / "tmp").iterdir()) == []
