"""Find which packs of the store may have some pages, from a sample of the fingerprints of every pack.

Fingerprints of all pages would take 4 GiB of memory for each TiB of pages. So the smallest fingerprints of each pack
are its sample: one of 64, and at least 64 of them. Equal pages have equal fingerprints: of a pack that has many pages
of a process, some are in the sample. Then all of its fingerprints are searched (`known_pages`). A pack that has n of
the pages is missed with a probability of (63/64)^n, and those n pages are stored again: 1.6 % for 262 pages (1 MiB).

An entry has 8 bytes: there are 32 MiB of them for a TiB of pages. They are mapped from files, so the kernel can take
that memory back. Names and digests of packs take some 220 bytes of memory each: 14 MiB for a TiB in packs of 16 MiB.
A merge of files takes up to 64 MiB for a moment, however large the store is. To measure it:

    pytest tests/unit/store/write/test_page_samples.py -k memory -s

Samples only suggest packs: what they suggest is compared with the sealed fingerprints of the pack. Wrong or missing
samples store some pages again, and never do harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.host.disk.files import own_name, write_new
from crckpt.model import PackId
from crckpt.store.backend.local import Backend
from crckpt.store.fingerprints import SIZE, load_kept_fingerprints
from crckpt.store.format.extents import Numbers, Positions, expand_ranges
from crckpt.store.format.samples import DIGEST, KEY_ID, MOST_PACKS, decode_samples, encode_samples
from crckpt.store.layout import FINGERPRINTS, ID, SAMPLES, fingerprints_name

ONE_OF: Final = 64
"""Pages for each page in the sample."""

LEAST: Final = 64
"""Pages in the sample of a pack at least, if it has so many."""

# The low bits of an entry are the number of a pack, the high bits those of a fingerprint.
_PACK_BITS: Final = np.uint64(24)
_PACK: Final = np.uint64(MOST_PACKS - 1)

# Larger files are not merged any more: those of 128 GiB of pages.
_MOST_MERGED: Final = 1 << 21

# One dump reads fingerprints of so many packs without samples, and so many bytes of them: in a tenth of a second.
_MOST_CAUGHT_UP: Final = 1 << 12
_MOST_CAUGHT_UP_BYTES: Final = 64 << 20


class _Part(Struct, frozen=True):
    """Samples of some packs: their digests, and entries in order. `name` is that of the file, if they are in one."""

    digests: bytes | memoryview
    entries: Numbers
    name: str = ""

    @property
    def packs(self) -> int:
        return len(self.digests) // DIGEST


class PageSamples:
    """The samples of all packs of a store whose fingerprints are in the cache.

    Packs are numbered through all files. The caller holds the store's lock while it uses packs that are found.
    """

    def __init__(self, backend: Backend, key: bytes) -> None:
        """Map the samples under the store's `key`; take samples of packs that have none yet."""
        self._backend = backend
        self._key = key
        # Names the key without revealing it: under another key, equal pages have other fingerprints.
        self._key_id = hashlib.sha256(b"samples" + key).digest()[:KEY_ID]
        self._useless: list[str] = []
        self._parts = [part for name in backend.names_in(SAMPLES) if (part := self._map(f"{SAMPLES}/{name}"))]
        self._kept = frozenset(bytes.fromhex(name) for name in backend.names_in(FINGERPRINTS) if ID.fullmatch(name))
        # Packs that have no samples: of an older crckpt, or of one that was killed.
        sampled = {digest for part in self._parts for digest in _split(part.digests)}
        missing = (PackId(digest.hex()) for digest in sorted(self._kept - sampled))
        self._unsaved = self._take_samples(islice(missing, _MOST_CAUGHT_UP), _MOST_CAUGHT_UP_BYTES)
        self._starts: Positions = np.cumsum([0, *(part.packs for part in self._all)], dtype=np.int64)

    def find(self, prints: Numbers) -> tuple[Positions, Positions]:
        """Find rows of `prints` that are in samples, and the number of a pack for each; a row may be there twice."""
        wanted = prints[:, 1] >> _PACK_BITS << _PACK_BITS
        # Sorted: neighbours are found in the same memory.
        order = np.argsort(wanted)
        wanted = wanted[order]
        rows, packs = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for part, start in zip(self._all, self._starts.tolist(), strict=False):
            if not len(part.entries):
                continue
            begins = np.searchsorted(part.entries, wanted)
            hits = np.flatnonzero(part.entries[np.minimum(begins, len(part.entries) - 1)] & ~_PACK == wanted)
            ends = np.searchsorted(part.entries, wanted[hits] | _PACK, "right")
            # A damaged file may have any entries, in any order.
            counts = np.maximum(ends - begins[hits], 0)
            pack = part.entries[expand_ranges(begins[hits], counts).view(np.int64)] & _PACK
            exists = pack < part.packs
            rows.append(np.repeat(order[hits], counts)[exists])
            packs.append(pack[exists].astype(np.int64) + start)
        return np.concatenate(rows), np.concatenate(packs)

    def digest(self, number: int) -> PackId:
        which = int(np.searchsorted(self._starts, number, side="right")) - 1
        at = (number - int(self._starts[which])) * DIGEST
        return PackId(bytes(self._all[which].digests[at : at + DIGEST]).hex())

    def add(self, digests: Iterable[PackId], directory: Path) -> None:
        """Add samples of new packs, whose fingerprints are in the cache. A file is made in `directory` meanwhile.

        A failure is ignored: these are a cache, and the next dump catches up.
        """
        with suppress(OSError):
            new = self._take_samples(digests)
            parts = [part for part in (self._unsaved, new) if part.packs]
            if not parts:
                return
            # Each file is at least as large as all smaller ones: so there are few, and each entry is seldom written.
            for part in sorted(self._parts, key=lambda part: len(part.entries)):
                size = sum(len(some.entries) for some in parts)
                if len(part.entries) > size or size + len(part.entries) > _MOST_MERGED:
                    break
                parts.append(part)
            whole, path = _merge(parts, self._kept), directory / "samples"
            content = encode_samples(self._key_id, bytes(whole.digests), whole.entries.tobytes())
            write_new(path, content, "samples")
            self._backend.put_derived(f"{SAMPLES}/{own_name()}", path, "samples")
            for name in (*(part.name for part in parts if part.name), *self._useless):
                with suppress(OSError):
                    self._backend.remove(name, "samples")

    @property
    def _all(self) -> list[_Part]:
        return [*self._parts, self._unsaved]

    def _map(self, name: str) -> _Part | None:
        try:
            samples = decode_samples(self._backend.map(name))
        except OSError:
            # Another process has merged it into a new file since it was listed: this dump does without it.
            return None
        except (ValueError, IntegrityError):
            samples = None
        if samples is not None and samples.key_id == self._key_id:
            return _Part(samples.digests, np.frombuffer(samples.entries, np.uint64), name)
        self._useless.append(name)
        return None

    def _take_samples(self, digests: Iterable[PackId], most: float = float("inf")) -> _Part:
        """Take samples of packs until `most` bytes of fingerprints were read."""
        taken: list[bytes] = []
        entries, read = [np.empty(0, np.uint64)], 0
        for digest in digests:
            prints = load_kept_fingerprints(self._backend, self._key, digest)
            if prints is None:
                # Those of another key are of no use: their pack is read whole when they are needed.
                with suppress(OSError):
                    self._backend.remove(fingerprints_name(digest), "fingerprints")
                continue
            high = prints[:, 1]
            count = min(len(high), max(LEAST, len(high) // ONE_OF))
            smallest: Numbers = np.partition(high, count - 1)[:count]
            entries.append(smallest >> _PACK_BITS << _PACK_BITS | np.uint64(len(taken)))
            taken.append(bytes.fromhex(digest))
            read += len(prints) * SIZE
            if read >= most or len(taken) == MOST_PACKS:
                break
        return _Part(b"".join(taken), np.sort(np.concatenate(entries)))


def _merge(parts: Sequence[_Part], kept: frozenset[bytes]) -> _Part:
    """Put the samples of packs together whose fingerprints are `kept`, or that are new; once, if parts share a pack."""
    numbers: dict[bytes, int] = {}
    entries = []
    for part in parts:
        new_number = np.full(part.packs, MOST_PACKS, np.uint64)
        for number, digest in enumerate(_split(part.digests)):
            is_wanted = digest in kept or not part.name
            if is_wanted and digest not in numbers and len(numbers) < MOST_PACKS:
                new_number[number] = numbers[digest] = len(numbers)
        pack = part.entries & _PACK
        some = part.entries[pack < part.packs]
        moved = new_number[(some & _PACK).view(np.int64)]
        entries.append((some & ~_PACK | moved)[moved < MOST_PACKS])
    return _Part(b"".join(numbers), np.sort(np.concatenate(entries)))


def _split(digests: bytes | memoryview) -> list[bytes]:
    content = bytes(digests)
    return [content[at : at + DIGEST] for at in range(0, len(content), DIGEST)]
