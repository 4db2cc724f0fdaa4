"""Fingerprints of pages, 128 bits each under the store's secret key, and the cache of those of packs.

The function is AES-GMAC (NIST SP 800-38D) with one nonce for all pages: the value of a polynomial of degree 257 at a
secret point, plus a secret constant. Two different pages have equal values for at most 257 of 2^128 points. So if two
pages are chosen without knowing the key, their fingerprints are equal with a probability of at most 2^-119. The format,
in `crckpt.store`, says what this depends on.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from crckpt.errors import IntegrityError
from crckpt.host.disk.files import write_new
from crckpt.model import PAGE_SIZE, PackId
from crckpt.store.backend.local import Backend
from crckpt.store.format.extents import Bytes, Numbers, Positions
from crckpt.store.format.pack import FinishedPack, Pack
from crckpt.store.layout import FINGERPRINT_KEY, fingerprints_name

SIZE: Final = 16
_KEY: Final = 32
_MOST_KEY: Final = 1024
_DIGEST: Final = 32
# Frames whose fingerprints are computed at once: 4 MiB of pages.
_FRAMES_AT_ONCE: Final = 16

# The same for all pages, so that equal pages have equal fingerprints. Anyone who sees fingerprints of known pages can
# compute the secret point.
_NONCE: Final = bytes(12)


def read_key(backend: Backend) -> bytes:
    """Return the secret key of the store's fingerprints; make it if it is missing or damaged."""
    # If the key cannot be written, only this process has it: the fingerprints that it writes are of no use to others.
    if (key := _read_kept_key(backend)) is None:
        key = os.urandom(_KEY)
        with suppress(OSError):
            backend.put(FINGERPRINT_KEY, key, "fingerprint-key")
            # Another process may have made a key meanwhile. Use the one that stays: under another, these fingerprints
            # would never be accepted.
            key = _read_kept_key(backend) or key
    return key


def compute_fingerprints(pages: Bytes, which: Positions, key: bytes) -> Numbers:
    """Return the fingerprints of the rows `which` of pages (n by page size), 2 numbers each."""
    content = pages.reshape(-1).data
    some = [content[at : at + PAGE_SIZE] for at in (which * PAGE_SIZE).tolist()]
    # map() and not a loop: in a loop, other threads get a turn at each of a million calls (2.7 µs a page instead of
    # 1.2, measured).
    return _as_array(b"".join(map(AESGCM(key).encrypt, repeat(_NONCE), repeat(b""), some)))


def write_fingerprints(key: bytes, written: FinishedPack, prints: Numbers) -> None:
    """Write the fingerprints of a new pack's pages to a file next to it."""
    # A failure is ignored: they are a cache.
    with suppress(OSError):
        content = prints.tobytes()
        write_new(_beside(written.path), content + _seal(key, written.digest, content), "fingerprints")


def cache_fingerprints(backend: Backend, written: FinishedPack) -> None:
    """Move what `write_fingerprints` wrote into the cache."""
    with suppress(OSError):
        backend.put_derived(fingerprints_name(written.digest), _beside(written.path), "fingerprints")


def load_fingerprints(backend: Backend, key: bytes, pack: Pack) -> Numbers:
    """Load the fingerprints of a pack's pages from the cache, or compute them from the pack.

    Raises IntegrityError if the pack is damaged.
    """
    kept = load_kept_fingerprints(backend, key, pack.digest)
    if kept is not None and len(kept) == pack.pages:
        return kept
    parts = []
    for first in range(0, len(pack.table), _FRAMES_AT_ONCE):
        frames = range(first, min(first + _FRAMES_AT_ONCE, len(pack.table)))
        content = np.frombuffer(b"".join(map(pack.read_frame, frames)), np.uint8).reshape(-1, PAGE_SIZE)
        parts.append(compute_fingerprints(content, np.arange(len(content)), key).tobytes())
    found = b"".join(parts)
    with suppress(OSError):
        backend.put(fingerprints_name(pack.digest), found + _seal(key, pack.digest, found), "fingerprints")
    return _as_array(found)


def load_kept_fingerprints(backend: Backend, key: bytes, digest: PackId) -> Numbers | None:
    """Load the fingerprints of a pack's pages from the cache; None if they are not there, or of no use."""
    with suppress(OSError, ValueError, IntegrityError):
        # Mapped, not read: the kernel can take the memory back.
        content = backend.map(fingerprints_name(digest))
        prints, seal = content[:-_DIGEST], content[-_DIGEST:]
        # Those made under another key, or by the function of an older crckpt, have another seal.
        if len(prints) and len(prints) % SIZE == 0 and _seal(key, digest, prints) == seal:
            return _as_array(prints)
    return None


def _read_kept_key(backend: Backend) -> bytes | None:
    with suppress(OSError, IntegrityError):
        key = backend.read(FINGERPRINT_KEY, _MOST_KEY)
        return key if len(key) == _KEY else None
    return None


def _as_array(prints: bytes | memoryview) -> Numbers:
    return np.frombuffer(prints, np.uint64).reshape(-1, 2)


def _beside(pack: Path) -> Path:
    return pack.with_name(f"{pack.name}.fingerprints")


def _seal(key: bytes, digest: PackId, prints: bytes | memoryview) -> bytes:
    """Bind fingerprints to key and pack: those of another store or pack would be wrong, not only useless."""
    seal = hashlib.sha256(key + bytes.fromhex(digest))
    seal.update(prints)
    return seal.digest()
