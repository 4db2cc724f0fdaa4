"""From image files to extents: each page is all zero, known already, or new and put into the pack."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from crckpt.errors import IntegrityError
from crckpt.store.copy_forward import worth_copying
from crckpt.store.extents import (
    ZERO,
    Bytes,
    Extents,
    Mask,
    Numbers,
    Places,
    covered,
    extents_of,
    places_of,
    renumbered,
    spread,
    together,
)
from crckpt.store.fingerprints import as_array, fingerprints
from crckpt.store.imageset import Source, sources
from crckpt.store.index import FILE, Index, StoredFile, encode_index
from crckpt.store.known import KnownPages
from crckpt.store.layout import Facts, Layout
from crckpt.store.manifest import Checkpoint, IndexPlace, PackUse
from crckpt.store.new_packs import NewPacks, new_packs, pages_in_a_pack
from crckpt.store.pack import FRAME_PAGES
from crckpt.store.pack_writer import Written


@dataclass(frozen=True)
class Counts:
    """Pages of the image files and details: all, those that are zero, those that were known or met before."""

    pages: int = 0
    zero: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Packed:
    """What is to be committed: packs, each with the fingerprints of its pages; none if nothing was new.

    `raw` is in bytes; `copied` is how many pages of the packs are known ones, stored again to let old packs die.
    """

    packs: tuple[tuple[Written, bytes], ...]
    uses: tuple[PackUse, ...]
    index: IndexPlace
    raw: int
    counts: Counts
    copied: int


@dataclass(frozen=True)
class Target:
    """In which directory packs are written, at which zstd level, and who is told (bytes done, bytes in all)."""

    directory: Path
    level: int
    progress: Callable[[int, int], None]


def pack_images(
    layout: Layout, facts: Facts, parent: Checkpoint | None, images: Path, details: bytes, target: Target
) -> Packed:
    """Store what is new of an image directory in new packs. Raises IntegrityError if the set contradicts itself."""
    found = sources(images, details)
    raw = sum(source.size for source in found)
    known = KnownPages(layout, facts, parent)
    with new_packs(target.directory, target.level, pages_in_a_pack(raw)) as packs:
        packing = _Packing(known, packs, facts.seed, lambda done: target.progress(min(done, raw), raw))
        files = [packing.store(source) for source in found]
        counts, new = packing.counts, len(packing.fingerprints)
        chosen = worth_copying(_known_in_use(files, known), known.starts, new)
        files = [packing.copy(source, file, chosen) for source, file in zip(found, files, strict=True)]
        copied = len(packing.fingerprints) - new
        first = _used(files)
        content = encode_index(
            Index(tuple(replace(file, extents=renumbered(file.extents, _numbers(first))) for file in files))
        )
        index = packing.store(Source("index", FILE, len(content), content=content))
        written = packs.finish()
    order = [*first, *(pack for pack in _used([index]) if pack not in first)]
    prints = (packing.fingerprints[at : at + packs.limit] for at in range(0, len(packing.fingerprints), packs.limit))
    return Packed(
        packs=tuple(zip(written, map(b"".join, prints), strict=True)),
        uses=_uses(order, [*files, index], known, written),
        index=IndexPlace(len(content), tuple(renumbered(index.extents, _numbers(order)).tolist())),
        raw=raw,
        counts=counts,
        copied=copied,
    )


class _Packing:
    """Stores sources one by one. Packs in its extents are numbered as in `known`, then come the new ones."""

    def __init__(self, known: KnownPages, packs: NewPacks, seed: int, tell: Callable[[int], None]) -> None:
        self.counts = Counts()
        self.fingerprints: list[bytes] = []
        self._known = known
        self._packs = packs
        self._seed = seed
        self._tell = tell
        self._done = 0
        self._new: dict[bytes, int] = {}

    def store(self, source: Source) -> StoredFile:
        parts = []
        for first, pages in source.batches():
            parts.append(self._batch(source.key, first, pages))
            self._done += pages.size
            self._tell(self._done)
        return StoredFile(source.name, source.kind, source.size, source.pagemap, together(parts))

    def copy(self, source: Source, file: StoredFile, chosen: Mask) -> StoredFile:
        """Store the pages of a file again that are known and `chosen`. Raises IntegrityError if it has changed."""
        pack, page = places_of(file.extents)
        old = np.flatnonzero(pack < len(self._known.packs))
        numbers = self._known.numbers(pack[old], page[old])
        which, numbers = old[chosen[numbers]], numbers[chosen[numbers]]
        if not len(which):
            return file
        for at, pages in source.some(which):
            prints = fingerprints(pages, np.arange(len(pages)), self._seed)
            if (as_array(prints) != self._known.fingerprints[numbers[at]]).any():
                raise IntegrityError(f"{source.name} changed while it was read")
            pack[which[at]], page[which[at]] = self._add(prints, pages)
        return replace(file, extents=extents_of(spread(file.extents["first"], file.extents["count"]), pack, page))

    def _batch(self, key: tuple[str, str], first: Numbers, pages: Bytes) -> Extents:
        pack, page = np.full(len(pages), ZERO, np.uint32), np.zeros(len(pages), np.uint64)
        filled = np.flatnonzero(pages.view(np.uint64).any(axis=1))
        prints = fingerprints(pages, filled, self._seed)
        found = self._look_up(key, first[filled], as_array(prints))
        is_known = found >= 0
        pack[filled[is_known]], page[filled[is_known]] = self._known.places(found[is_known])
        rest = np.flatnonzero(~is_known)
        before = len(self.fingerprints)
        pack[filled[rest]], page[filled[rest]] = self._add([prints[at] for at in rest.tolist()], pages, filled[rest])
        fresh = len(self.fingerprints) - before
        self.counts = Counts(
            self.counts.pages + len(pages),
            self.counts.zero + len(pages) - len(filled),
            self.counts.shared + len(filled) - fresh,
        )
        return extents_of(first, pack, page)

    def _look_up(self, key: tuple[str, str], first: Numbers, prints: Numbers) -> npt.NDArray[np.int64]:
        """The known page of each content: at the same place if it is the same there, else anywhere."""
        found = self._known.at(key, first)
        there = self._known.fingerprints[found] if len(self._known.fingerprints) else prints
        found[(there != prints).any(axis=1)] = -1
        missing = np.flatnonzero(found < 0)
        if len(missing):
            found[missing] = self._known.with_content(prints[missing])
        return found

    def _add(
        self, prints: list[bytes], pages: Bytes, which: npt.NDArray[np.intp] | None = None
    ) -> tuple[Places, Places]:
        """Put those of the pages (`which`: all) into packs that are not there yet; pack and page number of each."""
        fresh: list[int] = []
        numbers = np.empty(len(prints), np.int64)
        rows = range(len(pages)) if which is None else which.tolist()
        for spot, (row, content) in enumerate(zip(rows, prints, strict=True)):
            numbers[spot] = number = self._new.setdefault(content, len(self._new))
            if number == len(self.fingerprints):
                fresh.append(row)
                self.fingerprints.append(content)
        if fresh:
            self._packs.add(pages if len(fresh) == len(pages) else pages[fresh])
        pack, page = self._packs.places(numbers)
        return pack + len(self._known.packs), page


def _used(files: Iterable[StoredFile]) -> list[int]:
    packs = np.unique(np.concatenate([np.empty(0, np.uint32), *(file.extents["pack"] for file in files)]))
    return [int(pack) for pack in packs if pack != ZERO]


def _known_in_use(files: list[StoredFile], known: KnownPages) -> Mask:
    extents = np.concatenate([file.extents for file in files])
    parts = [covered(extents, number, pack.pages) for number, pack in enumerate(known.packs)]
    return np.concatenate([np.empty(0, np.bool_), *parts])


def _numbers(order: list[int]) -> npt.NDArray[np.uint32]:
    """The number in the manifest of each pack."""
    numbers = np.full(max(order, default=0) + 1, ZERO, np.uint32)
    numbers[order] = np.arange(len(order), dtype=np.uint32)
    return numbers


def _uses(
    order: list[int], files: list[StoredFile], known: KnownPages, new: tuple[Written, ...]
) -> tuple[PackUse, ...]:
    extents = np.concatenate([file.extents for file in files])
    packs = [*((pack.digest, pack.pages) for pack in known.packs), *((pack.digest, pack.pages) for pack in new)]
    return tuple(_use(number, *packs[number], extents) for number in order)


def _use(number: int, digest: str, total: int, extents: Extents) -> PackUse:
    pages = covered(extents, number, total)
    frames = np.logical_or.reduceat(pages, np.arange(0, total, FRAME_PAGES))
    return PackUse(digest, int(frames.sum()), int(pages.sum()))
