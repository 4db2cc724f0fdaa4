"""Fingerprints of pages, 128 bits each under the store's secret seed, and what is remembered of packs' ones."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from crckpt.host.files import write_durably
from crckpt.model import PAGE_SIZE
from crckpt.store.extents import Bytes, Numbers
from crckpt.store.layout import Facts, Layout
from crckpt.store.pack import Pack

SIZE: Final = 16
_DIGEST: Final = 32
_FRAMES_AT_ONCE: Final = 16


def fingerprints(pages: Bytes, which: npt.NDArray[np.intp], seed: int) -> list[bytes]:
    """The fingerprints of the pages numbered `which`, of an array n by page size."""
    content = pages.reshape(-1).data
    digest = xxhash.xxh3_128_digest
    return [digest(content[at : at + PAGE_SIZE], seed) for at in (which * PAGE_SIZE).tolist()]


def as_array(prints: list[bytes] | bytes) -> Numbers:
    """Fingerprints as n by 2 numbers."""
    joined = prints if isinstance(prints, bytes) else b"".join(prints)
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


def remember(layout: Layout, facts: Facts, digest: str, prints: bytes) -> None:
    """Keep the fingerprints of a pack's pages. That it is a cache makes failures harmless."""
    with suppress(OSError):
        write_durably(layout.fingerprints / digest, prints + _seal(facts, digest, prints), "fingerprints")


def recall(layout: Layout, facts: Facts, pack: Pack) -> Numbers:
    """The fingerprints of a pack's pages: kept or worked out again. Raises IntegrityError on damage."""
    try:
        content = (layout.fingerprints / pack.digest).read_bytes()
    except OSError:
        content = b""
    prints, seal = content[:-_DIGEST], content[-_DIGEST:]
    if len(prints) != pack.pages * SIZE or _seal(facts, pack.digest, prints) != seal:
        prints = b"".join(_worked_out(pack, first, facts.seed) for first in range(0, len(pack.table), _FRAMES_AT_ONCE))
        remember(layout, facts, pack.digest, prints)
    return as_array(prints)


def _worked_out(pack: Pack, first: int, seed: int) -> bytes:
    count = min(_FRAMES_AT_ONCE, len(pack.table) - first)
    content = np.frombuffer(b"".join(pack.frames(first, count)), np.uint8).reshape(-1, PAGE_SIZE)
    return b"".join(fingerprints(content, np.arange(len(content)), seed))


def _seal(facts: Facts, digest: str, prints: bytes) -> bytes:
    """Binds fingerprints to seed and pack: those of another store or pack would be wrong, not only useless."""
    return hashlib.sha256(facts.seed.to_bytes(8, "little") + bytes.fromhex(digest) + prints).digest()
