"""Fingerprints of pages, 128 bits each under the store's secret key, and what is remembered of packs' ones.

The function is AES-GMAC (NIST SP 800-38D) with one nonce for all pages. For a page it is the value of a polynomial of
degree 257 at a secret point, plus a secret constant: two different pages have the same for at most 257 of 2^128 points.
So whoever chooses two pages without knowing the key, they have equal fingerprints with a probability of at most 2^-119.
The format, in `crckpt.store`, says what this rests on.
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
from crckpt.model import PAGE_SIZE
from crckpt.store.backend.protocol import Backend
from crckpt.store.format.extents import Bytes, Numbers, Positions
from crckpt.store.format.pack import Pack
from crckpt.store.format.pack_writer import FinishedPack
from crckpt.store.layout import FINGERPRINT_KEY, fingerprints_name

SIZE: Final = 16
_KEY: Final = 32
_MOST_KEY: Final = 1024
_DIGEST: Final = 32
_FRAMES_AT_ONCE: Final = 16

_NONCE: Final = bytes(12)
"""The same for all pages, so that equal pages have equal fingerprints: who sees those can work out the key's point."""


def read_key(backend: Backend) -> bytes:
    """Return the secret key of the store's fingerprints; make it if it is missing or damaged.

    If it cannot be written it is good for this call's caller only: what is stored then has useless fingerprints.
    """
    if (key := _kept_key(backend)) is None:
        key = os.urandom(_KEY)
        with suppress(OSError):
            backend.put(FINGERPRINT_KEY, key, "fingerprint-key")
            # Of two who make it at once both take the later one, or one of them has fingerprints that nobody believes.
            key = _kept_key(backend) or key
    return key


def compute_fingerprints(pages: Bytes, which: Positions, key: bytes) -> Numbers:
    """Return the fingerprints of the pages numbered `which`, of an array n by page size: as many by 2 numbers."""
    content = pages.reshape(-1).data
    some = [content[at : at + PAGE_SIZE] for at in (which * PAGE_SIZE).tolist()]
    # Mapped, not looped over: else each of a million calls lets another thread have its turn, for twice the time.
    return _as_array(b"".join(map(AESGCM(key).encrypt, repeat(_NONCE), repeat(b""), some)))


def write_fingerprints(key: bytes, written: FinishedPack, prints: Numbers) -> None:
    """Write the fingerprints of a new pack's pages beside it. That they are a cache makes failures harmless."""
    with suppress(OSError):
        write_new(_beside(written.path), _sealed(key, written.digest, prints.tobytes()), "fingerprints")


def cache_fingerprints(backend: Backend, written: FinishedPack) -> None:
    """Take what `write_fingerprints` wrote into the cache."""
    with suppress(OSError):
        backend.put_derived(fingerprints_name(written.digest), _beside(written.path), "fingerprints")


def load_fingerprints(backend: Backend, key: bytes, pack: Pack) -> Numbers:
    """The fingerprints of a pack's pages: kept or worked out again. Raises IntegrityError on damage.

    Those that are kept are mapped, not read: the kernel can take their memory back. Those that were made under another
    key, or by another function, as crckpt did before, have another seal.
    """
    name = fingerprints_name(pack.digest)
    with suppress(OSError, ValueError, IntegrityError):
        content = backend.map(name)
        prints, seal = content[:-_DIGEST], content[-_DIGEST:]
        if len(prints) == pack.pages * SIZE and _seal(key, pack.digest, prints) == seal:
            return _as_array(prints)
    found = b"".join(_worked_out(pack, first, key) for first in range(0, len(pack.table), _FRAMES_AT_ONCE))
    with suppress(OSError):
        backend.put(name, _sealed(key, pack.digest, found), "fingerprints")
    return _as_array(found)


def _kept_key(backend: Backend) -> bytes | None:
    with suppress(OSError, IntegrityError):
        key = backend.read(FINGERPRINT_KEY, _MOST_KEY)
        return key if len(key) == _KEY else None
    return None


def _as_array(prints: bytes | memoryview) -> Numbers:
    return np.frombuffer(prints, np.uint64).reshape(-1, 2)


def _beside(pack: Path) -> Path:
    return pack.with_name(f"{pack.name}.fingerprints")


def _worked_out(pack: Pack, first: int, key: bytes) -> bytes:
    count = min(_FRAMES_AT_ONCE, len(pack.table) - first)
    content = np.frombuffer(
        b"".join(pack.unpacked(frame, pack.stored(frame)) for frame in range(first, first + count)), np.uint8
    ).reshape(-1, PAGE_SIZE)
    return compute_fingerprints(content, np.arange(len(content)), key).tobytes()


def _sealed(key: bytes, digest: str, prints: bytes) -> bytes:
    return prints + _seal(key, digest, prints)


def _seal(key: bytes, digest: str, prints: bytes | memoryview) -> bytes:
    """Binds fingerprints to key and pack: those of another store or pack would be wrong, not only useless."""
    seal = hashlib.sha256(key + bytes.fromhex(digest))
    seal.update(prints)
    return seal.digest()
