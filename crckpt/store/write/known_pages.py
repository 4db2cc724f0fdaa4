"""Pages that the store has: the parent's, found by their place and content; others, found by their content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property

import numpy as np
import numpy.typing as npt

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE, PackId
from crckpt.store.backend.local import Backend
from crckpt.store.fingerprints import MOST, FingerprintTable, load_fingerprints, load_kept_fingerprints
from crckpt.store.format.extents import ZERO, Bytes, Extents, Numbers, Positions, find_extents, unique_sorted
from crckpt.store.format.index import StoredFile
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.format.pack import FRAME_PAGES, Pack, open_pack
from crckpt.store.read.contents import Contents
from crckpt.store.write.page_samples import PageSamples


class KnownPages:
    """The pages of a parent's packs, then those of other packs that a search took in, numbered through all packs.

    `starts` are the numbers of the packs' first pages, then the number of all pages. The first `inherited` packs are
    the parent's. Fingerprints are mapped from files. Those of the first 16 GiB of pages are in memory too; later pages
    are found only at their place.
    """

    def __init__(self, backend: Backend, key: bytes, parent: Checkpoint | None, samples: PageSamples | None) -> None:
        """Load the fingerprints of the parent's packs under the store's `key`.

        Searches take in the packs that `samples` suggest; the caller holds the store's lock while it uses them.
        """
        self.packs: list[Pack] = []
        self._backend = backend
        self._key = key
        self._samples = samples
        self._tried: set[str] = set()
        self._name = parent.short_id if parent is not None else ""
        self._files: dict[tuple[str, str], Extents] = {}
        self._prints: list[Numbers] = []
        self._contents: Contents | None = None
        if parent is not None:
            self._contents = contents = Contents(backend, parent)
            # First: if the index is damaged, the fingerprints are removed, and the packs are read whole below.
            files: tuple[StoredFile, ...] = ()
            with suppress(IntegrityError):
                files = contents.index.files
            numbers = np.full(len(parent.packs), ZERO, np.uint32)
            for number in range(len(parent.packs)):
                # A damaged pack is left out: nothing new depends on damage that was found.
                with suppress(IntegrityError):
                    pack = contents.pack(number)
                    self._prints.append(load_fingerprints(backend, key, pack))
                    numbers[number] = len(self.packs)
                    self.packs.append(pack)
            for file in files:
                moved = file.extents[np.argsort(file.extents["first"], kind="stable")]
                stored = moved["pack"] != ZERO
                # Pages in a damaged pack get the pack number ZERO here, and are left out below.
                moved["pack"][stored] = numbers[moved["pack"][stored]]
                self._files[file.key] = moved[~stored | (moved["pack"] != ZERO)]
            self._tried.update(use.digest for use in parent.packs)
        self.inherited = len(self.packs)
        self.starts: Positions = np.cumsum([0, *(pack.pages for pack in self.packs)], dtype=np.int64)

    def find_at(self, key: tuple[str, str], first: Numbers) -> Positions:
        """Find the page that the parent has at each number `first` of the object `key`; -1 for none."""
        extents = self._files.get(key)
        if extents is None or not len(extents):
            return np.full(len(first), -1, np.int64)
        # The last extent that begins at or before the page. Where there is none, the first stands in: `inside` is
        # false.
        spot = np.maximum(np.searchsorted(extents["first"], first, side="right"), 1) - 1
        found = extents[spot]
        inside = (first >= found["first"]) & (first < found["first"] + found["count"]) & (found["pack"] != ZERO)
        start = self.starts[np.where(inside, found["pack"], 0)]
        return np.where(inside, start + (found["page"] + first - found["first"]).astype(np.int64), -1)

    def find_inherited(self, key: tuple[str, str], wanted: Extents) -> Extents:
        """Find the parent's extents for these addresses of the object `key`; pack numbers count in `packs`.

        Raises IntegrityError if the parent lacks a page.
        """
        if not len(wanted):
            return wanted
        try:
            found, _ = find_extents(wanted, self._files.get(key, wanted[:0]))
        except LookupError as missing:
            what = f"{key[1]}: the page at {missing.args[0] * PAGE_SIZE:#x} was left to checkpoint {self._name}"
            raise IntegrityError(f"{what}, which does not have it") from None
        return found

    def read_pages(self, pages: Positions) -> Iterator[tuple[Positions, Bytes]]:
        """Yield which of `pages`, and their contents, frame by frame. Raises IntegrityError."""
        assert self._contents is not None
        pack, page = self.locations(pages)
        frame = page // FRAME_PAGES
        order = np.lexsort((frame, pack))
        ends = (np.diff(pack[order]) != 0) | (np.diff(frame[order]) != 0)
        # Frame by frame: each is unpacked once.
        for at in np.split(order, np.flatnonzero(ends) + 1):
            of, number = self.packs[int(pack[at[0]])], int(frame[at[0]])
            with self._contents.named():
                content = np.frombuffer(of.read_frame(number), np.uint8).reshape(-1, PAGE_SIZE)
            yield at, content[page[at] % FRAME_PAGES]

    def find_by_fingerprint(self, prints: Numbers) -> Positions:
        """Find a page with each fingerprint; -1 for none. Takes in packs that may have pages that are missing."""
        found = self._table.find(prints)
        missing = np.flatnonzero(found < 0)
        if self._samples is None or not len(missing):
            return found
        rows, packs = self._samples.find(prints[missing])
        while len(rows):
            # First the pack that may have the most of them: other packs may have only copies.
            suggested, counts = np.unique(packs, return_counts=True)
            best = suggested[np.argmax(counts)]
            if self._take_in(self._samples.digest(int(best))):
                found[missing] = self._table.find(prints[missing])
            is_left = (found[missing[rows]] < 0) & (packs != best)
            rows, packs = rows[is_left], packs[is_left]
        return found

    def end_search(self) -> None:
        """Take in no more packs."""
        self._samples = None

    def fingerprints(self, pages: Positions) -> Numbers:
        """Return the fingerprints of the pages of these numbers."""
        found = np.empty((len(pages), 2), np.uint64)
        pack, page = self.locations(pages)
        for number in unique_sorted(pack).tolist():
            here = pack == number
            found[here] = self._prints[number][page[here]]
        return found

    def locations(self, pages: Positions) -> tuple[npt.NDArray[np.intp], Positions]:
        """Return the pack (in `packs`) of each page, and its page number there."""
        pack = np.searchsorted(self.starts, pages, side="right") - 1
        return pack, pages - self.starts[pack]

    @cached_property
    def _table(self) -> FingerprintTable:
        size = min(MOST, int(self.starts[-1]))
        table = FingerprintTable(MOST if self._samples else size, size)
        for prints in self._prints:
            table.extend(prints)
        return table

    def _take_in(self, digest: PackId) -> bool:
        """Take in a pack that no checkpoint before has named to this one; return whether it was possible."""
        if digest in self._tried or self._table.count >= MOST:
            return False
        self._tried.add(digest)
        # Fingerprints are removed where damage is found, and are put in the cache after the pack's name is durable. A
        # pack without them is left out: to read it whole would take long.
        prints = load_kept_fingerprints(self._backend, self._key, digest)
        if prints is None:
            return False
        try:
            pack = open_pack(self._backend, digest)
        except (IntegrityError, OSError):
            return False
        if pack.pages != len(prints):
            return False
        self.packs.append(pack)
        self._prints.append(prints)
        self.starts = np.append(self.starts, self.starts[-1] + pack.pages)
        self._table.extend(prints)
        return True
