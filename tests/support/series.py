"""Long series of checkpoints, made here: random pages are rewritten from one to the next."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from image_sets import Area, ImageSet, described, write_set
from msgspec.structs import replace

from crckpt.model import PAGE_SIZE
from crckpt.store import Checkpoint, Repository, ingest
from crckpt.store.format.extents import Mask, expand_ranges
from crckpt.store.format.pack import FRAME_PAGES, open_pack
from crckpt.store.read.contents import contents_of

ADDRESS = 0x400000
HARD_BYTES = 1400
"""How much of a page does not compress: about what zstd finds in programs' memory."""


@dataclass
class Program:
    """An image directory whose pages are rewritten in place."""

    directory: Path
    pages: int
    rng: np.random.Generator

    def rewrite(self, share: float) -> Mask:
        """Rewrite each page with this probability, and return which pages were rewritten."""
        rewritten: Mask = self.rng.random(self.pages) < share
        chosen = np.flatnonzero(rewritten)
        with (self.directory / "pages-1.img").open("r+b") as file:
            for at, content in zip(chosen.tolist(), some_pages(self.rng, len(chosen)), strict=True):
                file.seek(at * PAGE_SIZE)
                file.write(content)
        (self.directory / "core-1.img").write_bytes(self.rng.bytes(1000))
        return rewritten


def some_pages(rng: np.random.Generator, count: int) -> list[bytes]:
    """Pages that differ from all others, a third of which does not compress."""
    hard = rng.bytes(HARD_BYTES * count)
    cut = (hard[at : at + HARD_BYTES] for at in range(0, len(hard), HARD_BYTES))
    return [part + part[:4] * ((PAGE_SIZE - HARD_BYTES) // 4) for part in cut]


def start_program(directory: Path, pages: int, seed: int = 0) -> Program:
    """A program with so many pages of memory."""
    rng = np.random.default_rng(seed)
    area = Area(ADDRESS, tuple(some_pages(rng, pages)))
    write_set(directory, ImageSet({"pagemap-1.img": [area]}, {"core-1.img": rng.bytes(1000)}))
    return Program(directory, pages, rng)


def series(repository: Repository, program: Program, length: int, share: float) -> Iterator[Checkpoint]:
    """So many checkpoints, each with its parent named: what `list` costs does not belong to it."""
    parent = None
    for number in range(length):
        if number:
            program.rewrite(share)
        checkpoint = ingest(repository, program.directory, replace(described(), parent=parent))
        parent = checkpoint.id
        yield checkpoint


def chain(repository: Repository, program: Program, length: int, share: float) -> Iterator[Checkpoint]:
    """So many checkpoints; all after the first leave to the one before what was not rewritten since."""
    checkpoint = ingest(repository, program.directory, described())
    yield checkpoint
    images = program.directory.with_name("written")
    for _ in range(1, length):
        _write_incremental(images, program, program.rewrite(share))
        checkpoint = ingest(
            repository, images, replace(described(), parent=checkpoint.id, base=images.with_name("gone"))
        )
        shutil.rmtree(images)
        yield checkpoint


def _write_incremental(directory: Path, program: Program, rewritten: Mask) -> None:
    memory = np.memmap(program.directory / "pages-1.img", np.uint8, "r").reshape(-1, PAGE_SIZE)
    bounds = [0, *(np.flatnonzero(np.diff(rewritten)) + 1).tolist(), len(rewritten)]
    areas = [
        Area(ADDRESS + start * PAGE_SIZE, tuple(page.tobytes() for page in memory[start:end]))
        if rewritten[start]
        else Area(ADDRESS + start * PAGE_SIZE, (), end - start)
        for start, end in itertools.pairwise(bounds)
    ]
    write_set(directory, ImageSet({"pagemap-1.img": areas}), "../gone")


@dataclass(frozen=True)
class Cost:
    """The cost of a restore: frames that it reads and unpacks, their bytes stored and raw; in how many pieces it all
    lies.
    """

    frames: int
    stored: int
    raw: int
    extents: int


def cost(repository: Repository, checkpoint: Checkpoint) -> Cost:
    """Count what a restore of the checkpoint costs."""
    files = contents_of(repository, checkpoint).index.files
    extents = np.concatenate([file.extents for file in files])
    frames = stored = raw = 0
    for number, use in enumerate(checkpoint.packs):
        inside = extents[extents["pack"] == number]
        needed = np.unique(expand_ranges(inside["page"], inside["count"]) // np.uint64(FRAME_PAGES))
        table = open_pack(repository.backend, use.digest).table[needed.astype(np.int64)]
        frames += len(needed)
        stored += int(table["stored"].sum())
        raw += int(table["raw"].sum())
    return Cost(frames, stored, raw, len(extents))


def disk(repository: Repository) -> int:
    """The bytes of all packs."""
    return sum(path.stat().st_size for path in (repository.root / "packs").glob("*/*.pack"))
