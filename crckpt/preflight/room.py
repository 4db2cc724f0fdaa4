"""Whether there is room for what a dump writes: said with the numbers before anything is frozen. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from crckpt.causes import Finding, cause, mebibytes
from crckpt.model import MEBIBYTE

OWN_MEMORY: Final = 256 * MEBIBYTE
"""What crckpt takes beside the images."""

_NEW_SHARE: Final = 8
"""Beside the images lies what becomes of them: an eighth at the least, unless the store has most of it."""


class Room(Struct, frozen=True):
    """Bytes that are free: where images go, and in memory; `in_memory` if they go there, `beside` if packs do, too.

    `read_only` is what of the store and that place takes no writes, empty if both do.
    """

    directory: str
    disk: int
    memory: int
    in_memory: bool
    beside: bool
    read_only: str = ""


def shortages(images: int, room: Room) -> Iterator[Finding]:
    """What does not fit, of images of about that many bytes."""
    if room.read_only:
        yield cause("store-read-only").told(directory=room.read_only)
        return
    on_disk = images + (images // _NEW_SHARE if room.beside else 0)
    if on_disk > room.disk:
        yield cause("disk").told(needed=mebibytes(on_disk), free=mebibytes(room.disk), directory=room.directory)
    memory = OWN_MEMORY + (on_disk if room.in_memory else 0)
    if memory > room.memory:
        yield cause("memory").told(needed=mebibytes(memory), free=mebibytes(room.memory), directory=room.directory)
