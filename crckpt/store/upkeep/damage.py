"""Damage that verify found."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from crckpt.model import CheckpointId


class Damage(Struct, frozen=True):
    """Something that is not what was stored: `name` is an id or digest; `checkpoints` cannot be restored now."""

    kind: Literal["manifest", "index", "pack"]
    name: str
    what: str
    checkpoints: tuple[CheckpointId, ...]
