"""Fingerprints of pages, 128 bits each under the store's secret seed, and what is remembered of packs' ones."""

from __future__ import annotations

import hashlib
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from crckpt.host.files import rename, write_durably, write_new
from crckpt.model import PAGE_SIZE
from crckpt.store.extents import Bytes, Numbers, Places
from crckpt.store.layout import Facts, Layout
from crckpt.store.pack import Pack
from crckpt.store.pack_writer import Written

SIZE: Final = 16
_DIGEST: Final = 32
_FRAMES_AT_ONCE: Final = 16


def fingerprints(pages: Bytes, which: Places, seed: int) -> Numbers:
    """The fingerprints of the pages numbered `which`, of an array n by page size: as many by 2 numbers."""
    content = pages.reshape(-1).data
    digest = xxhash.xxh3_128_digest
    return _as_array(b"".join([digest(content[at : at + PAGE_SIZE], seed) for at in (which * PAGE_SIZE).tolist()]))


def keep(facts: Facts, written: Written, prints: Numbers) -> None:
    """Write the fingerprints of a new pack's pages beside it. That they are a cache makes failures harmless."""
    with suppress(OSError):
        write_new(_beside(written.path), _sealed(facts, written.digest, prints.tobytes()), "fingerprints")


def remember(layout: Layout, written: Written) -> None:
    """Take what `keep` wrote into the cache."""
    with suppress(OSError):
        rename(_beside(written.path), layout.fingerprints / written.digest, "fingerprints")


def recall(layout: Layout, facts: Facts, pack: Pack) -> Numbers:
    """The fingerprints of a pack's pages: kept or worked out again. Raises IntegrityError on damage.

    Those that are kept are mapped, not read: the kernel can take their memory back.
    """
    path = layout.fingerprints / pack.digest
    with suppress(OSError, ValueError), path.open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        prints, seal = content[:-_DIGEST], content[-_DIGEST:]
        if len(prints) == pack.pages * SIZE and _seal(facts, pack.digest, prints) == seal:
            return _as_array(prints)
    found = b"".join(_worked_out(pack, first, facts.seed) for first in range(0, len(pack.table), _FRAMES_AT_ONCE))
    with suppress(OSError):
        write_durably(path, _sealed(facts, pack.digest, found), "fingerprints")
    return _as_array(found)


def _as_array(prints: bytes | memoryview) -> Numbers:
    return np.frombuffer(prints, np.uint64).reshape(-1, 2)


def _beside(pack: Path) -> Path:
    return pack.with_name(f"{pack.name}.fingerprints")


def _worked_out(pack: Pack, first: int, seed: int) -> bytes:
    count = min(_FRAMES_AT_ONCE, len(pack.table) - first)
    content = np.frombuffer(
        b"".join(pack.unpacked(frame, pack.stored(frame)) for frame in range(first, first + count)), np.uint8
    ).reshape(-1, PAGE_SIZE)
    return fingerprints(content, np.arange(len(content)), seed).tobytes()


def _sealed(facts: Facts, digest: str, prints: bytes) -> bytes:
    return prints + _seal(facts, digest, prints)


def _seal(facts: Facts, digest: str, prints: bytes | memoryview) -> bytes:
    """Binds fingerprints to seed and pack: those of another store or pack would be wrong, not only useless."""
    seal = hashlib.sha256(facts.seed.to_bytes(8, "little") + bytes.fromhex(digest))
    seal.update(prints)
    return seal.digest()
