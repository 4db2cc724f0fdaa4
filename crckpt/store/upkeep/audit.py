"""Check packs byte by byte, and checkpoints against their packs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np
from msgspec import Struct

from crckpt.errors import CrckptError, IntegrityError, error_text
from crckpt.images.pagemap import PRESENT, read_pagemap
from crckpt.model import PAGE_SIZE, CheckpointId, PackId
from crckpt.store.backend.local import Backend
from crckpt.store.damage import Damage
from crckpt.store.format.extents import ZERO, Extents, Numbers, mark_used_pages
from crckpt.store.format.index import FILE, PAGES
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.format.pack import FRAME_PAGES, Pack, open_pack
from crckpt.store.read.contents import Contents, index_extents
from crckpt.store.workers import wait_for_result, workers

# Frames that one task checks: those of 4 MiB of pages.
_FRAMES_AT_ONCE: Final = 16

# More pages than any extent may name.
_ANY: Final = 1 << 63


class PackAudit(Struct):
    """The damage of whole packs or single frames, and which checkpoints that affects."""

    count: int = 0
    bytes: int = 0
    packs: dict[PackId, Pack] = {}
    broken: dict[PackId, str] = {}
    frames: dict[PackId, dict[int, str]] = {}
    affected: dict[tuple[PackId, int], list[CheckpointId]] = {}

    def note_damage(self, checkpoint: Checkpoint, extents: Extents) -> bool:
        """Note which damage affects the extents of a checkpoint; return whether there is any."""
        is_damaged = False
        for number, use in enumerate(checkpoint.packs):
            damaged: list[int] = []
            if use.digest in self.broken:
                # No frame of the pack can be read: -1 stands for all of them.
                damaged = [-1]
            elif use.digest in self.frames:
                pages = mark_used_pages(extents, number, self.packs[use.digest].pages)
                starts = ((frame, frame * FRAME_PAGES) for frame in self.frames[use.digest])
                damaged = [frame for frame, start in starts if pages[start : start + FRAME_PAGES].any()]
            for frame in damaged:
                is_damaged = True
                ids = self.affected.setdefault((use.digest, frame), [])
                if checkpoint.id not in ids:
                    ids.append(checkpoint.id)
        return is_damaged

    def damages(self) -> Iterator[Damage]:
        """Yield all damage to packs, also what affects no checkpoint."""
        for digest, what in self.broken.items():
            yield Damage("pack", digest, what, tuple(self.affected.get((digest, -1), ())))
        for digest, frames in self.frames.items():
            for frame, what in frames.items():
                yield Damage("pack", digest, what, tuple(self.affected.get((digest, frame), ())))


def audit_packs(backend: Backend, checkpoints: list[Checkpoint], progress: Callable[[int, int], None]) -> PackAudit:
    """Read every pack that the checkpoints name, once, and compare every frame with its SHA-256."""
    audit = PackAudit()
    for digest in dict.fromkeys(use.digest for checkpoint in checkpoints for use in checkpoint.packs):
        audit.count += 1
        try:
            audit.packs[digest] = open_pack(backend, digest)
        # What a disk refuses to open or read is damage, too.
        except (IntegrityError, OSError) as error:
            audit.broken[digest] = error_text(error)
    audit.bytes = sum(pack.size for pack in audit.packs.values())
    done = 0
    with workers() as pool:
        for pack in audit.packs.values():
            starts = range(0, len(pack.table), _FRAMES_AT_ONCE)
            for size, found in map(wait_for_result, [pool.submit(_check, pack, start) for start in starts]):
                audit.frames.setdefault(pack.digest, {}).update(found)
                done += size
                progress(done, audit.bytes)
    audit.frames = {digest: found for digest, found in audit.frames.items() if found}
    # Until here only frames are counted; packs have tables and footers, too.
    progress(audit.bytes, audit.bytes)
    return audit


def audit_contents(
    backend: Backend, checkpoint: Checkpoint, packs: PackAudit, contents: Contents | None = None
) -> list[Damage]:
    """Check that a checkpoint's index is intact and fits its packs, and that page maps fit their pages.

    It reads by `contents` if the caller needs these, too.
    """
    place = index_extents(checkpoint)
    try:
        _check_range(checkpoint, packs, place)
    except IntegrityError as error:
        return [Damage("index", checkpoint.id, error.message, (checkpoint.id,))]
    if packs.note_damage(checkpoint, place):
        # Without the index the other needed pages are unknown; the damage of the pack is reported.
        return []
    contents = contents or Contents(backend, checkpoint)
    try:
        files = contents.index.files
        # The index itself, too: it lies in packs like the files.
        needed = np.concatenate([place, *(file.extents for file in files)])
        _check_range(checkpoint, packs, needed)
        # Page maps are read from the packs: the damage of these is reported already.
        if not packs.note_damage(checkpoint, needed):
            _check_pagemaps(contents)
    except CrckptError as error:
        return [Damage("index", checkpoint.id, error.message, (checkpoint.id,))]
    except MemoryError:
        return [Damage("index", checkpoint.id, "what it holds does not fit in memory", (checkpoint.id,))]
    return []


def note_affected(backend: Backend, checkpoint: Checkpoint, packs: PackAudit) -> None:
    """Note which damage affects a checkpoint that is not checked itself."""
    if not any(use.digest in packs.broken or use.digest in packs.frames for use in checkpoint.packs):
        return
    place = index_extents(checkpoint)
    if not packs.note_damage(checkpoint, place):
        # What else is damaged is for a check of that checkpoint to find.
        with suppress(CrckptError, MemoryError):
            packs.note_damage(
                checkpoint,
                np.concatenate([place, *(file.extents for file in Contents(backend, checkpoint).index.files)]),
            )


def _check(pack: Pack, first: int) -> tuple[int, dict[int, str]]:
    """Check some frames; return the bytes read, and the damaged frames."""
    count = min(_FRAMES_AT_ONCE, len(pack.table) - first)
    damaged, size = {}, 0
    for frame in range(first, first + count):
        try:
            stored = pack.read_stored(frame)
            size += len(stored)
            pack.check(frame, stored)
        except (IntegrityError, OSError) as error:
            damaged[frame] = error_text(error)
    return size, damaged


def _check_range(checkpoint: Checkpoint, packs: PackAudit, extents: Extents) -> None:
    inside = extents[extents["pack"] != ZERO]
    if (inside["pack"] >= len(checkpoint.packs)).any():
        raise IntegrityError("it refers to packs that its manifest does not name")
    found = [packs.packs.get(use.digest) for use in checkpoint.packs]
    pages = np.array([pack.pages if pack is not None else _ANY for pack in found], np.uint64)
    for number in inside["pack"][inside["page"] + inside["count"] > pages[inside["pack"]]][:1]:
        pack = found[number]
        assert pack is not None
        raise IntegrityError(f"it refers to pages that {pack.name} does not have")


def _check_pagemaps(contents: Contents) -> None:
    for file in contents.index.files:
        if file.kind == PAGES:
            pagemap = contents.index.find(file.pagemap, (FILE,))
            if pagemap is None:
                raise IntegrityError(f"{file.pagemap}, which describes {file.name}, is missing")
            pagemap_entries = read_pagemap(contents.read(pagemap), file.pagemap)
            wanted = _runs(pagemap_entries.table[:, 0] // PAGE_SIZE, pagemap_entries.table[:, 1])
            # A stored set is complete: it leaves no page to a parent.
            if not pagemap_entries.with_flag(PRESENT).all() or not np.array_equal(wanted, _runs_of(file.extents)):
                raise IntegrityError(f"{file.name} does not hold the pages that {file.pagemap} describes")
        elif file.kind == FILE:
            pages = -(-file.bytes // PAGE_SIZE)
            whole = np.array([[0, pages]] if pages else [], np.uint64).reshape(-1, 2)
            if not np.array_equal(_runs_of(file.extents), whole):
                raise IntegrityError(f"the pages of {file.name} are not in order")


def _runs_of(extents: Extents) -> Numbers:
    return _runs(extents["first"], extents["count"].astype(np.uint64))


def _runs(first: Numbers, count: Numbers) -> Numbers:
    """Join ranges of pages to as few rows (first, count) as possible."""
    # It takes memory by the row, however many pages there are.
    some = count > 0
    first, count = first[some], count[some]
    starts = np.flatnonzero(np.concatenate((np.ones(len(first[:1]), np.bool_), first[1:] != first[:-1] + count[:-1])))
    counts = np.add.reduceat(count, starts) if len(starts) else count
    return np.stack((first[starts], counts), axis=1)
