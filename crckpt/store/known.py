"""What the store already has: the pages of the parent's packs, found by place and by content."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from crckpt.errors import IntegrityError
from crckpt.store.contents import Contents
from crckpt.store.extents import ZERO, Extents, Numbers, Places
from crckpt.store.fingerprints import as_array, recall
from crckpt.store.layout import Facts, Layout
from crckpt.store.manifest import Checkpoint
from crckpt.store.pack import Pack


class KnownPages:
    """The pages of a parent's packs, numbered through all of them. Without a parent there are none.

    `starts` are the numbers of the packs' first pages, and how many there are in all. A damaged pack, or a damaged
    index of the parent, makes fewer pages known; nothing new comes to depend on it.
    """

    def __init__(self, layout: Layout, facts: Facts, parent: Checkpoint | None) -> None:
        """Reads, or works out, the fingerprints."""
        self.packs: list[Pack] = []
        self._files: dict[tuple[str, str], Extents] = {}
        found = [as_array(b"")]
        if parent is not None:
            contents = Contents(layout, parent)
            numbers = np.full(len(parent.packs), ZERO, np.uint32)
            for number in range(len(parent.packs)):
                prints = self._take(contents, number, layout, facts)
                if prints is not None:
                    numbers[number] = len(self.packs) - 1
                    found.append(prints)
            self._take_places(contents, numbers)
        self.fingerprints: Numbers = np.concatenate(found)
        self.starts: Places = np.cumsum([0, *(pack.pages for pack in self.packs)], dtype=np.int64)

    def at(self, key: tuple[str, str], first: Numbers) -> Places:
        """Of the pages numbered `first` in the object `key`: which page the parent has there, -1 for none."""
        extents = self._files.get(key)
        if extents is None or not len(extents):
            return np.full(len(first), -1, np.int64)
        spot = np.maximum(np.searchsorted(extents["first"], first, side="right"), 1) - 1
        found = extents[spot]
        inside = (first >= found["first"]) & (first < found["first"] + found["count"])
        start = self.starts[np.where(inside, found["pack"], 0)]
        return np.where(inside, start + (found["page"] + first - found["first"]).astype(np.int64), -1)

    def with_content(self, prints: Numbers) -> Places:
        """For each fingerprint, a page that has it, -1 for none."""
        if not len(self.fingerprints):
            return np.full(len(prints), -1, np.int64)
        order, low = self._sorted
        spot = order[np.minimum(np.searchsorted(low, prints[:, 0]), len(low) - 1)]
        return np.where((self.fingerprints[spot] == prints).all(axis=1), spot, -1)

    def places(self, pages: Places) -> tuple[npt.NDArray[np.intp], Places]:
        """Pack numbers (in `packs`) and page numbers there, of pages as the other methods give them."""
        pack = np.searchsorted(self.starts, pages, side="right") - 1
        return pack, pages - self.starts[pack]

    def numbers(self, pack: npt.NDArray[np.uint32], page: Numbers) -> Places:
        """The inverse of `places`."""
        numbers: Places = self.starts[pack] + page.astype(np.int64)
        return numbers

    @cached_property
    def _sorted(self) -> tuple[npt.NDArray[np.intp], Numbers]:
        low = self.fingerprints[:, 0]
        order = np.argsort(low, kind="stable")
        return order, low[order]

    def _take(self, contents: Contents, number: int, layout: Layout, facts: Facts) -> Numbers | None:
        try:
            pack = contents.pack(number)
            prints = recall(layout, facts, pack)
        except IntegrityError:
            return None
        self.packs.append(pack)
        return prints

    def _take_places(self, contents: Contents, numbers: npt.NDArray[np.uint32]) -> None:
        try:
            files = contents.index.files
        except IntegrityError:
            return
        for file in files:
            extents = file.extents[file.extents["pack"] != ZERO]
            moved = extents[np.argsort(extents["first"], kind="stable")]
            moved["pack"] = numbers[moved["pack"]]
            self._files[file.key] = moved[moved["pack"] != ZERO]
