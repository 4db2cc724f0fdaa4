"""Damage that was found: of packs, which are no longer relied on, and of checkpoints, which lists show."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.model import CheckpointId, PackId
from crckpt.store.backend.local import Backend
from crckpt.store.documents import decode
from crckpt.store.layout import KNOWN_DAMAGE, fingerprints_name

_MOST_BYTES: Final = 4 << 20

FIND_REPAIR: Final = "find what can be repaired: crckpt verify --repair"


class Damage(Struct, frozen=True):
    """Something that is not what was stored: `name` is an id or digest; `checkpoints` cannot be restored now."""

    kind: Literal["manifest", "index", "pack"]
    name: str
    what: str
    checkpoints: tuple[CheckpointId, ...]


class DamagedCheckpoint(IntegrityError):
    """A checkpoint is damaged; the message names it. `has_own_hint`: the damage has a remedy of its own."""

    has_own_hint = False


def read_known_damage(backend: Backend) -> frozenset[str]:
    """Read the ids of damaged checkpoints."""
    with suppress(OSError, IntegrityError, msgspec.ValidationError):
        return decode(backend.read(KNOWN_DAMAGE, _MOST_BYTES), frozenset[str], KNOWN_DAMAGE)
    return frozenset()


def note_known_damage(backend: Backend, verified: Iterable[CheckpointId], damaged: Iterable[CheckpointId]) -> None:
    """Note the result of a verification."""
    before = read_known_damage(backend)
    now = before.difference(verified).union(damaged)
    if now != before and not backend.find_write_refusal():
        # Verification reads only: a store that cannot be written is verified all the same.
        with suppress(OSError):
            backend.put(KNOWN_DAMAGE, msgspec.json.encode(sorted(now)), "damage")


def forget_fingerprints(backend: Backend, digests: Iterable[PackId]) -> None:
    """Remove the fingerprints of packs, so that these are read whole before anything new depends on them."""
    for digest in digests:
        # A failure is ignored: where this cannot write, nothing new is stored either.
        with suppress(OSError):
            backend.remove(fingerprints_name(digest), "fingerprints")
