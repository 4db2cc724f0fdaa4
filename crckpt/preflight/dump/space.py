"""Check disk space and memory before a dump."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from crckpt.causes import Finding, cause, mebibytes
from crckpt.model import MEBIBYTE

OWN_MEMORY: Final = 256 * MEBIBYTE
"""The memory that crckpt itself takes."""

# The packs that a dump adds take at least an eighth of the images, unless the store has most of their pages.
_NEW_SHARE: Final = 8


class FreeSpace(Struct, frozen=True):
    """Free bytes on the disk of `directory`, where the images go, and in memory.

    - `in_memory`: `directory` is in memory
    - `shares_disk`: the packs go to the same disk; if not, to that of `store`, which has `store_disk` bytes free
    - `read_only`: the store or staging directory that cannot be written; empty if both can
    """

    directory: str
    disk: int
    memory: int
    in_memory: bool
    shares_disk: bool
    read_only: str = ""
    store: str = ""
    store_disk: int = 0


def find_shortages(images: int, space: FreeSpace, growth: int | None = None) -> Iterator[Finding]:
    """Find what does not fit, for images of about `images` bytes.

    `growth` is how many bytes the store will grow by, None if that was not tried.
    """
    if space.read_only:
        yield cause("store-read-only").finding(directory=space.read_only)
        return
    added = images // _NEW_SHARE if growth is None else growth
    # The images stay until the packs are written: both need space at the same time.
    on_disk = images + (added if space.shares_disk else 0)
    if on_disk > space.disk:
        # Without the images, the packs must still fit.
        key = "staging-small" if not space.shares_disk else "store-small" if added > space.disk else "disk"
        yield cause(key).finding(needed=mebibytes(on_disk), free=mebibytes(space.disk), directory=space.directory)
    if growth is not None and not space.shares_disk and growth > space.store_disk:
        needed, free = mebibytes(growth), mebibytes(space.store_disk)
        yield cause("store-growth").finding(needed=needed, free=free, directory=space.store)
    memory = OWN_MEMORY + (on_disk if space.in_memory else 0)
    if memory > space.memory:
        yield cause("memory").finding(needed=mebibytes(memory), free=mebibytes(space.memory), directory=space.directory)
