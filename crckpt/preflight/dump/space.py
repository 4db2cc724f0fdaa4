"""Check disk space and memory before a dump."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Final

from msgspec import Struct

from crckpt.causes import Finding, cause, mebibytes
from crckpt.model import MEBIBYTE, PAGE_SIZE

OWN_MEMORY: Final = 256 * MEBIBYTE
"""The memory that crckpt itself takes."""

# A checkpoint adds at most its images, and the index of their pages.
_INDEX_SHARE: Final = 32
# The packs that a dump adds take about an eighth of the images, if nobody has tried how much.
_GUESSED_SHARE: Final = 8
# Of the growth that a sample shows: the rest of the tree may compress a little better.
_SURE: Final = 0.95
# Bytes of a sample that lie together.
_RUN: Final = 16 * PAGE_SIZE
# So many standard deviations less than expected are still possible.
_DEVIATIONS: Final = 2
# So many pairs of equal pages may be missing in a sample by chance: three of runs.
_MISSED: Final = 3 * _RUN // PAGE_SIZE


class FreeSpace(Struct, frozen=True):
    """Free bytes on the disk of `directory`, where the images go, on that of the `store`, and in memory.

    - `in_memory`: `directory` is in memory
    - `shares_disk`: both are on the same disk
    - `read_only`: the store or staging directory that cannot be written; empty if both can
    - `largest_file`: the largest file that may be written (`ulimit -f`); None if there is no limit
    """

    directory: str
    disk: int
    memory: int
    in_memory: bool
    shares_disk: bool
    read_only: str = ""
    store: str = ""
    store_disk: int = 0
    largest_file: int | None = None


class Growth(Struct, frozen=True):
    """How many bytes a checkpoint adds to the store: `likely`, and at `least`."""

    likely: int
    least: int


def predict_growth(images: int, memory: int, sample: int, repeated: int, stored: int) -> Growth:
    """Predict the growth from a `sample` of the tree's `memory` that took `stored` bytes, all in bytes.

    `repeated`: how many pages of the sample have another page's content.
    """
    likely = min(images, stored * memory // max(sample, 1))
    if not stored or sample >= memory:
        return Growth(likely, round(likely * _SURE))
    # As if each run of the sample were stored whole or not at all, which varies most.
    share = min(stored / sample, 1)
    deviation = sqrt((1 - share) / share * _RUN / sample)
    # If each page is there n times, a sample of s of p pages has about s * s * (n - 1) / (2 * p) pairs of equal pages.
    copies = 1 + 2 * (repeated + _MISSED) * memory * PAGE_SIZE / sample**2
    return Growth(likely, round(likely * max(_SURE - _DEVIATIONS * deviation, 0) / copies))


def depends_on_growth(images: int, space: FreeSpace) -> bool:
    """Return whether a checkpoint with `images` bytes of images may not fit in the store."""
    most = images + images // _INDEX_SHARE + MEBIBYTE
    return most + (images if space.shares_disk else 0) > space.store_disk


def find_shortages(images: int, space: FreeSpace, growth: Growth | None = None) -> Iterator[Finding]:
    """Find what surely does not fit, for about `images` bytes of images.

    `growth` is None if it is not known: then only the images count.
    """
    if space.read_only:
        yield cause("store-read-only").finding(directory=space.read_only)
        return
    # CRIU would be ended by SIGXFSZ in the freeze. It writes a file for each process.
    if space.largest_file is not None and images > space.largest_file:
        yield cause("file-size-limit").finding(images=mebibytes(images), limit=mebibytes(space.largest_file))
    least = growth.least if growth is not None else 0
    # The images stay until the packs are written: both need space at the same time.
    on_disk = images + (least if space.shares_disk else 0)
    if on_disk > space.disk:
        # Without the images, the packs must still fit.
        key = "staging-small" if not space.shares_disk else "store-small" if least > space.disk else "disk"
        yield _finding(key, images, _likely(images, growth), space.directory, space.disk)
    if not space.shares_disk and least > space.store_disk:
        yield _finding("store-growth", images, _likely(images, growth), space.store, space.store_disk)
    memory = OWN_MEMORY + (on_disk if space.in_memory else 0)
    if memory > space.memory:
        needed, free = mebibytes(memory), mebibytes(space.memory)
        yield cause("memory").finding(needed=needed, free=free, directory=space.directory)


def find_risks(images: int, space: FreeSpace, growth: Growth | None) -> Iterator[Finding]:
    """Find whether the store will probably be full before the checkpoint is stored, if `find_shortages` finds nothing.

    `growth` is None if it could not be tried.
    """
    likely = _likely(images, growth)
    if likely + (images if space.shares_disk else 0) > space.store_disk:
        key = "disk-tight" if space.shares_disk else "store-tight"
        yield _finding(key, images, likely, space.store, space.store_disk)


def _likely(images: int, growth: Growth | None) -> int:
    return growth.likely if growth is not None else images // _GUESSED_SHARE


def _finding(key: str, images: int, growth: int, directory: str, free: int) -> Finding:
    return cause(key).finding(
        needed=mebibytes(images + growth),
        images=mebibytes(images),
        growth=mebibytes(growth),
        directory=directory,
        free=mebibytes(free),
    )
