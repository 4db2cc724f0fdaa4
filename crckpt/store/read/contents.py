"""Read the files of a checkpoint from its packs. Every byte is verified before it is used."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE, PackId
from crckpt.store.backend.local import Backend
from crckpt.store.damage import FIND_REPAIR, DamagedCheckpoint, forget_fingerprints
from crckpt.store.format.extents import EXTENT, ZERO, Extents, Mask
from crckpt.store.format.index import Index, StoredFile, decode_index
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.format.pack import FRAME_PAGES, Pack, open_pack
from crckpt.store.repository import Repository

# The largest size of a file that is read as a whole: a page map of 64 million entries.
_MOST_WHOLE: Final = 1 << 30

# Unpacked frames that are kept, 8 MiB: the small files of an image set lie next to each other.
_KEPT_FRAMES: Final = 32


class Contents:
    """A checkpoint's files. Every method raises IntegrityError, naming checkpoint, pack and frame, on any damage."""

    def __init__(self, backend: Backend, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._backend = backend
        self._packs: dict[int, Pack] = {}
        # The frames that were used last are kept.
        self._frame = lru_cache(_KEPT_FRAMES)(lambda pack, frame: self.pack(pack).read_frame(frame))

    @cached_property
    def index(self) -> Index:
        """The index of the files."""
        place = self.checkpoint.index
        with self.named():
            if sum(extent[1] for extent in place.extents) != -(-place.bytes // PAGE_SIZE):
                raise IntegrityError("its index has too few or too many pages")
            try:
                content = self._read(index_extents(self.checkpoint), place.bytes)
                return decode_index(content, len(self.checkpoint.packs))
            except MemoryError as error:
                raise IntegrityError("its index does not fit in memory") from error

    def read(self, file: StoredFile) -> bytes:
        """Read a file as a whole, if it fits in memory."""
        with self.named():
            if file.bytes > _MOST_WHOLE:
                raise IntegrityError(f"{file.name} has {file.bytes} bytes, more than such an image may have")
            return self._read(file.extents, file.bytes)

    def are_in_packs(self, extents: Extents, digests: Collection[PackId]) -> Mask:
        """Return which of these extents lie in packs with these digests."""
        numbers = [number for number, use in enumerate(self.checkpoint.packs) if use.digest in digests]
        found: Mask = np.isin(extents["pack"], np.array(numbers, np.uint32))
        return found

    def pack(self, number: int) -> Pack:
        """Open one of the checkpoint's packs."""
        if number not in self._packs:
            if number >= len(self.checkpoint.packs):
                raise IntegrityError(f"it refers to pack number {number}, but has only {len(self.checkpoint.packs)}")
            digest = self.checkpoint.packs[number].digest
            self._packs[number] = open_pack(self._backend, digest)
        return self._packs[number]

    @contextmanager
    def named(self) -> Iterator[None]:
        """Begin integrity errors of the block with the checkpoint's id, and forget the fingerprints of its packs."""
        try:
            yield
        except IntegrityError as error:
            # So that a dump reads these packs whole before it relies on their pages.
            forget_fingerprints(self._backend, (use.digest for use in self.checkpoint.packs))
            short = self.checkpoint.short_id
            damaged = DamagedCheckpoint(
                f"checkpoint {short} is damaged: {error.message}",
                hint=error.hint or f"{FIND_REPAIR}; or restore an older checkpoint: crckpt restore {short} --or-older",
            )
            damaged.has_own_hint = bool(error.hint)
            raise damaged from error

    def _read(self, extents: Extents, size: int) -> bytes:
        content = bytearray(size)
        at = 0
        for _, count, pack, page in extents.tolist():
            end = at + count * PAGE_SIZE
            if pack != ZERO and page + count > self.pack(pack).pages:
                raise IntegrityError(f"{self.pack(pack).name} has no page {page + count - 1}")
            while pack != ZERO and at < end:
                frame, start = divmod(page, FRAME_PAGES)
                taken = min((end - at) // PAGE_SIZE, FRAME_PAGES - start)
                some = self._frame(pack, frame)[start * PAGE_SIZE : (start + taken) * PAGE_SIZE][: max(0, size - at)]
                content[at : at + len(some)] = some
                page, at = page + taken, at + taken * PAGE_SIZE
            at = end
        if at < size:
            raise IntegrityError("its index lacks pages")
        return bytes(content)


_last: WeakKeyDictionary[Repository, Contents] = WeakKeyDictionary()


def contents_of(repository: Repository, checkpoint: Checkpoint) -> Contents:
    """Return the checkpoint's files."""
    # The last checkpoint is kept: callers read one file after the other.
    contents = _last.get(repository)
    if contents is None or contents.checkpoint != checkpoint:
        contents = _last[repository] = Contents(repository.backend, checkpoint)
    return contents


def index_extents(checkpoint: Checkpoint) -> Extents:
    return np.array(list(checkpoint.index.extents), EXTENT)
