"""The checkpoints that the last verifications found damaged, for lists: nobody relies on it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from crckpt.errors import IntegrityError
from crckpt.model import CheckpointId
from crckpt.store.backend.protocol import Backend
from crckpt.store.documents import decode
from crckpt.store.layout import KNOWN_DAMAGE

_DECODER: Final = msgspec.json.Decoder(frozenset[str])
_MOST_BYTES: Final = 4 << 20

FIND_REPAIR: Final = "find what can be repaired: crckpt verify --repair"


class DamagedCheckpoint(IntegrityError):
    """A checkpoint is damaged; the message names it. `has_own_hint`: the damage has a remedy of its own."""

    has_own_hint = False


def read_known_damage(backend: Backend) -> frozenset[str]:
    """Read the ids of damaged checkpoints."""
    with suppress(OSError, IntegrityError, msgspec.ValidationError):
        return decode(backend.read(KNOWN_DAMAGE, _MOST_BYTES), _DECODER, KNOWN_DAMAGE)
    return frozenset()


def note_known_damage(backend: Backend, verified: Iterable[CheckpointId], damaged: Iterable[CheckpointId]) -> None:
    """Note the result of a verification."""
    before = read_known_damage(backend)
    now = before.difference(verified).union(damaged)
    if now != before and not backend.find_write_refusal():
        # Verification reads only: a store that cannot be written is verified all the same.
        with suppress(OSError):
            backend.put(KNOWN_DAMAGE, msgspec.json.encode(sorted(now)), "damage")
