"""Measure what it takes to store some memory: store it like a checkpoint, and keep nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from msgspec import Struct

from crckpt.model import PAGE_SIZE
from crckpt.store.fingerprints import read_key
from crckpt.store.format.extents import EXTENT
from crckpt.store.format.index import PAGES
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.repository import Repository
from crckpt.store.workers import workers
from crckpt.store.write.examine_pages import examine_written_image
from crckpt.store.write.fingerprint_table import FingerprintTable
from crckpt.store.write.imageset import Source
from crckpt.store.write.known_pages import KnownPages
from crckpt.store.write.new_packs import Frames, new_packs, pages_in_a_pack
from crckpt.store.write.packing import Packing
from crckpt.store.write.page_samples import PageSamples


class TrialResult(Struct, frozen=True):
    """The time that it took to store some memory durably, and the bytes of packs that it made.

    `packing_ms` is without the final sync, whose time varies.
    """

    ms: float
    packing_ms: float
    stored: int


class StorageTrial:
    """Stores memory as a child of `parent` would be stored; packs are written in `directory`.

    `known_ms` is how long it took to read the parent's fingerprints.
    """

    def __init__(self, repository: Repository, parent: Checkpoint | None, directory: Path, level: int | None) -> None:
        began = time.monotonic()
        self._key = read_key(repository.backend)
        self._known = KnownPages(repository.backend, self._key, parent, PageSamples(repository.backend, self._key))
        # Builds the table of fingerprints, which a dump has to build, too.
        self._known.find_by_fingerprint(np.empty((0, 2), np.uint64))
        self.known_ms = (time.monotonic() - began) * 1000
        self._directory = directory
        self._level = level

    def store(self, pages: Path) -> TrialResult:
        """Store a file of whole pages, such as CRIU leaves. Raises OSError."""
        # A dump does this while CRIU still writes: see `Preparation`, which needs a second core, too.
        examined = examine_written_image(pages, self._key) if len(os.sched_getaffinity(0)) > 1 else {}
        began = time.monotonic()
        size = pages.stat().st_size
        # At addresses that the parent does not have: known pages are found by their content.
        extents = np.zeros(1, EXTENT)
        extents["count"] = size // PAGE_SIZE
        source = Source(pages.name, PAGES, size, extents, (pages,), pagemap="pagemap-0.img")
        new_pages = FingerprintTable(max(1, source.size // PAGE_SIZE))
        with (
            TemporaryDirectory(dir=self._directory) as directory,
            workers() as pool,
            new_packs(Path(directory), Frames(pool, self._level), pages_in_a_pack(source.size), self._key) as packs,
        ):
            packing = Packing(self._known, new_pages, packs, self._key, lambda *batch: examined.get(batch))
            packing.store((source,), pool)
            packed = time.monotonic()
            stored = sum(pack.size for pack in packs.finish())
        return TrialResult((time.monotonic() - began) * 1000, (packed - began) * 1000, stored)
