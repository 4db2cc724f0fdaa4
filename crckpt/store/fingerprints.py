"""Fingerprints of pages, 128 bits each under the store's secret key; the cache of those of packs; a table of them.

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
import numpy.typing as npt
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


MOST: Final = 1 << 22
"""The most fingerprints of a table: 16 GiB of pages, in 96 MiB. Equal pages after them are stored again."""

# Fingerprints that are put into slots at once: each takes some 100 bytes meanwhile.
_AT_ONCE: Final = 1 << 16


class FingerprintTable:
    """Fingerprints (n by 2 numbers), numbered from 0 in the order in which they are added.

    The first `most` are kept, in 24 to 32 bytes each; the others only count. Open addressing: a fingerprint is in the
    first slot that was free, from the slot of its low bits on.
    """

    def __init__(self, most: int, expected: int | None = None) -> None:
        """`most` is below 2^31; memory is taken as it is used. With more than `expected` ones the table grows."""
        self.count = 0
        self._most = most
        # Two rows rather than two columns: numpy looks up single numbers four times as fast as pairs.
        self._prints: Numbers = np.empty((2, most if expected is None else expected), np.uint64)
        self._make_slots()

    def find(self, prints: Numbers) -> Positions:
        """Find the number of each, -1 for those that are not kept."""
        found = np.full(len(prints), -1, np.int64)
        left = np.arange(len(prints) if min(self.count, self._most) else 0)
        low, high = np.ascontiguousarray(prints.T)
        # The low bits serve as the hash: a fingerprint of GMAC is as good as random.
        slot = low[left] & self._mask
        while len(left):
            # A free slot, 0, becomes the last fingerprint: what that is does not matter.
            number = self._slots[slot].astype(np.int64) - 1
            hit = (self._prints[0][number] == low[left]) & (self._prints[1][number] == high[left]) & (number >= 0)
            found[left[hit]] = number[hit]
            further = ~hit & (number >= 0)
            left, slot = left[further], (slot[further] + np.uint64(1)) & self._mask
        return found

    def extend(self, prints: Numbers) -> None:
        """Give the next numbers to all of them, also to those that have one: `find` finds the older number."""
        some = prints[: max(0, self._most - self.count)]
        start, end = self.count, self.count + len(some)
        self.count += len(prints)
        if not len(some):
            return
        if end > self._prints.shape[1]:
            grown: Numbers = np.empty((2, min(self._most, 2 * end)), np.uint64)
            grown[:, :start] = self._prints[:, :start]
            self._prints = grown
            self._make_slots()
            start = 0
        self._prints[:, end - len(some) : end] = some.T
        for first in range(start, end, _AT_ONCE):
            self._insert(np.arange(first, min(end, first + _AT_ONCE)))

    def _make_slots(self) -> None:
        """Make slots for as many fingerprints as there is room for, all free."""
        # Between two and four slots a fingerprint, so that searches are short. 0 is a free slot.
        self._slots = np.zeros(1 << (2 * self._prints.shape[1] - 1).bit_length(), np.uint32)
        self._mask = np.uint64(len(self._slots) - 1)

    def _insert(self, numbers: Positions) -> None:
        slot = self._prints[0][numbers] & self._mask
        while len(numbers):
            free = self._slots[slot] == 0
            # Of several that claim a slot the last here gets it, which is the oldest; the others see that.
            self._slots[slot[free][::-1]] = numbers[free][::-1] + 1
            lost = self._slots[slot] != numbers + 1
            numbers, slot = numbers[lost], (slot[lost] + np.uint64(1)) & self._mask

    def number(self, prints: Numbers) -> tuple[Positions, Positions]:
        """Return the number of each, and the rows that are new, in order: they now have a number."""
        # Once the table is full, all that is not found is new, even if it comes twice.
        numbers = self.find(prints)
        missing = np.flatnonzero(numbers < 0)
        fresh, group = missing, np.arange(len(missing))
        if len(missing) and self.count < self._most:
            first, group = _group(prints[missing])
            fresh = missing[first]
        numbers[missing] = self.count + group
        self.extend(prints[fresh])
        return numbers, fresh


def _group(prints: Numbers) -> tuple[Positions, npt.NDArray[np.intp]]:
    """Return the first row of each fingerprint, in order, and which of those each row equals."""
    # Equal fingerprints may count as different if another with the same low half sorts between them: that takes some
    # 2^32 pages, and then a page is stored twice.
    low, high = np.ascontiguousarray(prints.T)
    order = np.argsort(low)
    low, high = low[order], high[order]
    begins = np.concatenate(([True], (low[1:] != low[:-1]) | (high[1:] != high[:-1])))
    first = np.minimum.reduceat(order, np.flatnonzero(begins))
    rank = np.empty(len(first), np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    group = np.empty(len(prints), np.intp)
    group[order] = rank[np.cumsum(begins) - 1]
    return np.sort(first), group
