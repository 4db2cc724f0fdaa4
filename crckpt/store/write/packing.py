"""Turn image files into extents: each page is all zero, known already, or new and put into a pack.

`StorageTrial` measures what that takes: it stores memory like a checkpoint, and keeps nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE
from crckpt.store.backend.local import Backend
from crckpt.store.fingerprints import MOST, FingerprintTable, compute_fingerprints, read_key
from crckpt.store.format.extents import (
    EXTENT,
    ZERO,
    Bytes,
    Extents,
    Mask,
    Numbers,
    Positions,
    concatenate_extents,
    expand_ranges,
    extent_ends,
    join_extents,
    make_extents,
    mark_used_pages,
    page_count,
    page_locations,
    renumber_packs,
    slice_extents,
    unique_sorted,
)
from crckpt.store.format.index import FILE, PAGES, Index, StoredFile, encode_index
from crckpt.store.format.manifest import Checkpoint, IndexPlace, PackUse
from crckpt.store.format.pack import FRAME_PAGES, FinishedPack
from crckpt.store.repository import Repository
from crckpt.store.workers import workers
from crckpt.store.write.copy_forward import choose_pages
from crckpt.store.write.examine_pages import Batch, Examined, examine_written_image, read_ahead
from crckpt.store.write.imageset import Source, bytes_source, find_sources
from crckpt.store.write.known_pages import KnownPages
from crckpt.store.write.new_packs import NewPacks, pages_in_a_pack
from crckpt.store.write.page_samples import PageSamples

# New packs are numbered from here on until all known packs are known: those come first.
_PROVISIONAL: Final = 1 << 31

# Pages that are examined for copying at once: each takes some 50 bytes.
_AT_ONCE: Final = 1 << 14

Contents: TypeAlias = Callable[[Positions, Positions], Iterator[tuple[slice | Positions, Bytes]]]
"""From the positions of pages in an object, and their numbers as known pages, to which of them and their contents."""


class PackedImages(Struct, frozen=True):
    """The packed images, as a commit needs them.

    `packs` are finished, with their fingerprints beside them; there are none if no page was new. `statistics` are those
    of `Statistics` that count bytes and pages. `samples` get those of the new packs.
    """

    packs: tuple[FinishedPack, ...]
    uses: tuple[PackUse, ...]
    index: IndexPlace
    statistics: dict[str, int]
    samples: PageSamples | None


def pack_images(
    backend: Backend,
    parent: Checkpoint | None,
    images: Path,
    details: bytes,
    base: Path | None,
    directory: Path,
    *,
    level: int | None,
    dedup: bool,
    searches: bool,
    copies: bool,
    progress: Callable[[int, int], None],
    count_uses: Callable[[], Mapping[str, int]],
    examined: Examined,
    loaded: KnownPages | None,
) -> PackedImages:
    """Store the new pages of an image directory in new packs, which are written in `directory`.

    The parent has the pages that were left to the set in `base`. `level` and what follows are as for `ingest`.
    `count_uses` counts the pages of each pack that the checkpoint of another job uses that uses most of it. `examined`
    are pages that were examined before; `loaded` are those of the parent, if that was done before.

    Raises IntegrityError if the set contradicts itself, or if the parent lacks pages or is damaged.
    """
    found = find_sources(images, details, base)
    size = sum(source.size for source in found)
    raw = size + sum(page_count(source.left) for source in found) * PAGE_SIZE
    key = read_key(backend)
    # With a base, the images have left pages to the parent: it is needed even without dedup.
    samples = PageSamples(backend, key) if dedup and searches else None
    known = loaded or KnownPages(backend, key, parent if dedup or base else None, samples)
    left = [known.find_inherited(source.key, source.left) for source in found]
    with workers() as pool, closing(NewPacks(directory, pool, level, pages_in_a_pack(raw), key)) as packs:
        new_pages = FingerprintTable(min(MOST, -(-raw // PAGE_SIZE)) if dedup else 0)
        packing = Packing(known, new_pages, packs, key, examined, searches=searches)
        # The last page of each object is padded, and counts as a whole.
        files = packing.store(found, pool, lambda done: progress(min(done, size), size))
        known.end_search()
        inherited = np.concatenate(left)
        packing.count_pages(page_count(inherited), page_count(inherited[inherited["pack"] == ZERO]), 0)
        statistics, new = dict(packing.counts), packs.pages
        # Once it is known how much is new: that limits what is copied.
        chosen = np.zeros(0, np.bool_)
        if copies:
            extents = np.concatenate([*(file.extents for file in files), inherited])
            chosen = _choose_copies(known, extents, new, count_uses)
        files = [packing.copy(*parts, chosen) for parts in zip(found, files, left, strict=True)]
        copied = packs.pages - new
        first = _packs_used(files)
        numbers = _manifest_numbers(first)
        numbered = (replace(file, extents=renumber_packs(file.extents, numbers)) for file in files)
        content = encode_index(Index(tuple(numbered)))
        # Last, because it lists where all others lie.
        (index,) = packing.store((bytes_source("index", FILE, content),), pool)
        written = packs.finish()
    # The index was encoded with the numbers of `first`: packs that only the index itself uses come after these.
    order = [*first, *(pack for pack in _packs_used([index]) if pack not in first)]
    return PackedImages(
        packs=written,
        uses=_pack_uses(order, [*files, index], known, written),
        index=IndexPlace(len(content), tuple(renumber_packs(index.extents, _manifest_numbers(order)).tolist())),
        statistics={
            **statistics,
            "raw_bytes": raw,
            "new_bytes": (sum(pack.pages for pack in written) - copied) * PAGE_SIZE,
            "stored_bytes": sum(pack.size for pack in written),
            "copied_bytes": copied * PAGE_SIZE,
            "inherited_pages": page_count(inherited),
        },
        samples=samples,
    )


def _choose_copies(known: KnownPages, extents: Extents, new: int, count_uses: Callable[[], Mapping[str, int]]) -> Mask:
    """Choose which of the known pages that are used are stored again beside the `new` ones."""

    def find_used_by_others() -> Positions:
        uses = count_uses()
        return np.array([uses.get(pack.digest, 0) for pack in known.packs], np.int64)

    used = [mark_used_pages(extents, number, pack.pages) for number, pack in enumerate(known.packs)]
    in_use = np.concatenate([np.empty(0, np.bool_), *used])
    return choose_pages(in_use, known.starts, new, known.inherited, find_used_by_others)


class Packing:
    """Stores sources. In its extents the packs of `known` come first, then the new ones.

    `known` must take in no more packs once the first sources are stored.
    """

    def __init__(
        self,
        known: KnownPages,
        new_pages: FingerprintTable,
        packs: NewPacks,
        key: bytes,
        examined: Examined,
        *,
        searches: bool = True,
    ) -> None:
        """`new_pages` gets the fingerprints of the pages of `packs`; `key` is the key of the store's fingerprints.

        Without `searches` known pages are found only at their place.
        """
        # Of the image files and details: all pages, those that are zero, and those that were shared. A shared page was
        # in the store, or is a second copy of a new one.
        self.counts = {"pages": 0, "zero_pages": 0, "shared_pages": 0}
        self._known = known
        self._new_pages = new_pages
        self._packs = packs
        self._key = key
        self._examined = examined
        self._searches = searches
        self._first_new = _PROVISIONAL

    def store(
        self, sources: Sequence[Source], pool: Executor, progress: Callable[[int], None] = lambda _done: None
    ) -> list[StoredFile]:
        """Put new pages into the packs; `progress` gets how many bytes are done. Raises IntegrityError, OSError."""
        parts: dict[tuple[str, str], list[Extents]] = {source.key: [] for source in sources}
        done = 0
        for batch in read_ahead(sources, self._key, pool, self._examined):
            parts[batch.source.key].append(self._store_batch(batch))
            done += batch.pages.size
            progress(done)
        self._first_new = len(self._known.packs)
        files = []
        for source in sources:
            joined = concatenate_extents(parts[source.key])
            # New packs get their numbers.
            is_new = (joined["pack"] >= _PROVISIONAL) & (joined["pack"] != ZERO)
            joined["pack"][is_new] -= np.uint32(_PROVISIONAL - self._first_new)
            files.append(StoredFile(source.name, source.kind, source.size, source.pagemap, joined))
        return files

    def copy(self, source: Source, file: StoredFile, left: Extents, chosen: Mask) -> StoredFile:
        """Store again the `chosen` known pages of a file and of what it left to the parent; return both as one.

        Raises IntegrityError if the file has changed, or if a page that it left to the parent is damaged.
        """
        own = self._store_again(source.name, file.extents, chosen, lambda positions, _: source.read_some(positions))
        rest = self._store_again(source.name, left, chosen, lambda _, numbers: self._known.read_pages(numbers))
        whole = np.concatenate((own, rest))
        # What was left to the parent lies among the file's own pages, and extents are in the order of pages.
        if len(rest):
            whole = join_extents(whole[np.argsort(whole["first"], kind="stable")])
        return replace(file, bytes=file.bytes + page_count(rest) * PAGE_SIZE, extents=whole)

    def _store_again(self, name: str, extents: Extents, chosen: Mask, contents: Contents) -> Extents:
        """Store again the known pages that are `chosen`; `contents` gives them."""
        if not chosen.any():
            return extents
        ends = extent_ends(extents)
        total = int(ends[-1]) if len(ends) else 0
        parts = []
        for start in range(0, total, _AT_ONCE):
            some = slice_extents(extents, ends, start, min(start + _AT_ONCE, total))
            pack, page = page_locations(some)
            old = np.flatnonzero(pack < len(self._known.packs))
            numbers = self._known.starts[pack[old]] + page[old].astype(np.int64)
            which, numbers = old[chosen[numbers]], numbers[chosen[numbers]]
            for at, pages in contents(start + which, numbers) if len(which) else ():
                prints = compute_fingerprints(pages, np.arange(len(pages)), self._key)
                # The file was read before; what is copied must be what its extents name.
                if (prints != self._known.fingerprints(numbers[at])).any():
                    raise IntegrityError(f"{name} changed while it was read")
                pack[which[at]], page[which[at]] = self._add(prints, pages, np.arange(len(pages)))
            if len(which):
                some = make_extents(expand_ranges(some["first"], some["count"]), pack, page)
            parts.append(some)
        return concatenate_extents(parts)

    def _store_batch(self, batch: Batch) -> Extents:
        total, filled, prints = len(batch.pages), batch.examined.filled, batch.examined.prints
        pack, page = np.full(total, ZERO, np.uint32), np.zeros(total, np.uint64)
        found = self._look_up(batch.source.key, batch.first[filled], prints)
        is_known = found >= 0
        pack[filled[is_known]], page[filled[is_known]] = self._known.locations(found[is_known])
        rest, before = filled[~is_known], self._packs.pages
        pack[rest], page[rest] = self._add(prints[~is_known], batch.pages, rest)
        self.count_pages(total, total - len(filled), self._packs.pages - before)
        return make_extents(batch.first, pack, page)

    def count_pages(self, pages: int, zero: int, fresh: int) -> None:
        """Add to `counts`: so many of the pages are zero, and so many are new."""
        for name, count in zip(self.counts, (pages, zero, pages - zero - fresh), strict=True):
            self.counts[name] += count

    def _look_up(self, key: tuple[str, str], first: Numbers, prints: Numbers) -> Positions:
        """Find the known page of each content: at the same place if it is equal there, else anywhere."""
        # 10 s later, 97.7 % of a redis's pages are equal at the same address (measured): few need a search.
        found = self._known.find_at(key, first)
        there = np.flatnonzero(found >= 0)
        differs = (self._known.fingerprints(found[there]) != prints[there]).any(axis=1)
        # Another content there: it may still lie elsewhere.
        found[there[differs]] = -1
        if self._searches:
            missing = np.flatnonzero(found < 0)
            found[missing] = self._known.find_by_fingerprint(prints[missing])
        return found

    def _add(self, prints: Numbers, pages: Bytes, rows: Positions) -> tuple[Positions, Positions]:
        """Put the rows of pages that are new into packs; return the pack and page number of each."""
        numbers, fresh = self._new_pages.number(prints)
        self._packs.add(pages, rows[fresh], prints[fresh])
        pack, page = self._packs.locations(numbers)
        return pack + self._first_new, page


def _packs_used(files: Iterable[StoredFile]) -> list[int]:
    packs = unique_sorted(np.concatenate([np.empty(0, np.uint32), *(file.extents["pack"] for file in files)]))
    return [int(pack) for pack in packs if pack != ZERO]


def _manifest_numbers(order: list[int]) -> npt.NDArray[np.uint32]:
    """Return the number that each pack has in the manifest."""
    numbers = np.full(max(order, default=0) + 1, ZERO, np.uint32)
    numbers[order] = np.arange(len(order), dtype=np.uint32)
    return numbers


def _pack_uses(
    order: list[int], files: list[StoredFile], known: KnownPages, new: tuple[FinishedPack, ...]
) -> tuple[PackUse, ...]:
    extents = np.concatenate([file.extents for file in files])
    packs = [*((pack.digest, pack.pages) for pack in known.packs), *((pack.digest, pack.pages) for pack in new)]
    uses = []
    for number in order:
        digest, total = packs[number]
        pages = mark_used_pages(extents, number, total)
        frames = np.logical_or.reduceat(pages, np.arange(0, total, FRAME_PAGES))
        uses.append(PackUse(digest, int(frames.sum()), int(pages.sum())))
    return tuple(uses)


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
            closing(NewPacks(Path(directory), pool, self._level, pages_in_a_pack(source.size), self._key)) as packs,
        ):
            packing = Packing(self._known, new_pages, packs, self._key, examined)
            packing.store((source,), pool)
            packed = time.monotonic()
            stored = sum(pack.size for pack in packs.finish())
        return TrialResult((time.monotonic() - began) * 1000, (packed - began) * 1000, stored)
