"""From image files to extents: each page is all zero, known already, or new and put into the pack."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from crckpt.store.extents import ZERO, Bytes, Extents, Numbers, covered, extents_of, renumbered, together
from crckpt.store.fingerprints import as_array, fingerprints
from crckpt.store.imageset import Source, sources
from crckpt.store.index import FILE, Index, StoredFile, encode_index
from crckpt.store.known import KnownPages
from crckpt.store.layout import Facts, Layout
from crckpt.store.manifest import Checkpoint, IndexPlace, PackUse
from crckpt.store.pack import FRAME_PAGES
from crckpt.store.pack_writer import PackWriter, Written


@dataclass(frozen=True)
class Counts:
    """Pages of the image files and details: all, those that are zero, those that were known or met before."""

    pages: int = 0
    zero: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Packed:
    """What is to be committed; `pack` is None if nothing was new. `raw` is in bytes."""

    pack: Written | None
    fingerprints: bytes
    uses: tuple[PackUse, ...]
    index: IndexPlace
    raw: int
    counts: Counts


@dataclass(frozen=True)
class Target:
    """Where the pack is written, at which zstd level, and who is told (bytes done, bytes in all)."""

    path: Path
    level: int
    progress: Callable[[int, int], None]


def pack_images(
    layout: Layout, facts: Facts, parent: Checkpoint | None, images: Path, details: bytes, target: Target
) -> Packed:
    """Store what is new of an image directory in a new pack. Raises IntegrityError if the set contradicts itself."""
    found = sources(images, details)
    raw = sum(source.size for source in found)
    known = KnownPages(layout, facts, parent)
    with PackWriter(target.path, target.level) as writer:
        packing = _Packing(known, writer, facts.seed, lambda done: target.progress(min(done, raw), raw))
        files = [packing.store(source) for source in found]
        counts = packing.counts
        first = _used(files)
        content = encode_index(Index(tuple(_numbered(file, first, known) for file in files)))
        index = packing.store(Source("index", FILE, len(content), content=content))
        written = writer.finish()
    order = _order(first, index, known, new=written is not None)
    return Packed(
        pack=written,
        fingerprints=b"".join(packing.fingerprints),
        uses=_uses(order, [*files, index], known, written),
        index=IndexPlace(len(content), tuple(renumbered(index.extents, _numbers(order, known)).tolist())),
        raw=raw,
        counts=counts,
    )


class _Packing:
    """Stores sources one by one. Packs in its extents are numbered as in `known`, the new one last."""

    def __init__(self, known: KnownPages, writer: PackWriter, seed: int, tell: Callable[[int], None]) -> None:
        self.counts = Counts()
        self.fingerprints: list[bytes] = []
        self._known = known
        self._writer = writer
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

    def _batch(self, key: tuple[str, str], first: Numbers, pages: Bytes) -> Extents:
        pack, page = np.full(len(pages), ZERO, np.uint32), np.zeros(len(pages), np.uint64)
        filled = np.flatnonzero(pages.view(np.uint64).any(axis=1))
        prints = fingerprints(pages, filled, self._seed)
        found = self._look_up(key, first[filled], as_array(prints))
        is_known = found >= 0
        pack[filled[is_known]], page[filled[is_known]] = self._known.places(found[is_known])
        rest = np.flatnonzero(~is_known)
        fresh = self._add([prints[at] for at in rest.tolist()], filled[rest], pages, page)
        pack[filled[rest]] = len(self._known.packs)
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

    def _add(self, prints: list[bytes], which: npt.NDArray[np.intp], pages: Bytes, numbers: Numbers) -> int:
        """Put into the pack what is not there yet, and fill in `numbers`; how many pages that were."""
        fresh, where = [], []
        for at, content in zip(which.tolist(), prints, strict=True):
            number = self._new.setdefault(content, len(self._new))
            if number == len(self.fingerprints):
                fresh.append(at)
                self.fingerprints.append(content)
            where.append(number)
        numbers[which] = where
        if fresh:
            self._writer.add(pages[fresh])
        return len(fresh)


def _used(files: Iterable[StoredFile]) -> list[int]:
    packs = np.unique(np.concatenate([np.empty(0, np.uint32), *(file.extents["pack"] for file in files)]))
    return [int(pack) for pack in packs if pack != ZERO]


def _order(first: list[int], index: StoredFile, known: KnownPages, *, new: bool) -> list[int]:
    """The packs as the manifest numbers them: known ones of files, the new one, those only the index uses."""
    old = [pack for pack in first if pack != len(known.packs)]
    more = [pack for pack in _used([index]) if pack not in first and pack != len(known.packs)]
    return [*old, *([len(known.packs)] if new else []), *more]


def _numbers(order: list[int], known: KnownPages) -> npt.NDArray[np.uint32]:
    numbers = np.full(len(known.packs) + 1, ZERO, np.uint32)
    numbers[order] = np.arange(len(order), dtype=np.uint32)
    return numbers


def _numbered(file: StoredFile, used: list[int], known: KnownPages) -> StoredFile:
    return replace(file, extents=renumbered(file.extents, _numbers(used, known)))


def _uses(order: list[int], files: list[StoredFile], known: KnownPages, written: Written | None) -> tuple[PackUse, ...]:
    extents = np.concatenate([file.extents for file in files])
    return tuple(_use(pack, extents, known, written) for pack in order)


def _use(pack: int, extents: Extents, known: KnownPages, written: Written | None) -> PackUse:
    if pack < len(known.packs):
        digest, total = known.packs[pack].digest, known.packs[pack].pages
    else:
        assert written is not None
        digest, total = written.digest, written.pages
    pages = covered(extents, pack, total)
    frames = np.logical_or.reduceat(pages, np.arange(0, total, FRAME_PAGES))
    return PackUse(digest, int(frames.sum()), int(pages.sum()))
