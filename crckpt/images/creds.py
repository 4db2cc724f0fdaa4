"""The credentials of a thread in its `core-TID.img`, with which it is restored (images/creds.proto)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_single
from crckpt.images.wire import Message

CAPABILITIES: Final = {"CapInh": 9, "CapPrm": 10, "CapEff": 11, "CapBnd": 12, "CapAmb": 19}
"""The field of each set in the image, by its name in /proc/PID/status."""


class Rights(Struct, frozen=True):
    """The rights of a thread: `uids` and `gids` are real, effective, saved and file system ids.

    `capabilities`: sets of bits, in the order of CAPABILITIES. `confined`: it has no_new_privs.
    """

    uids: tuple[int, ...]
    gids: tuple[int, ...]
    groups: frozenset[int]
    capabilities: tuple[int, ...]
    confined: bool


def read_rights(data: bytes, name: str = "core.img") -> Rights | None:
    """Decode the rights; None if the image has none (a zombie). Raises IntegrityError if it is damaged."""
    thread = read_single(data, name, magics.CORE).message(5)
    return decode_rights(thread.message(10)) if 10 in thread else None


def read_securebits(data: bytes, name: str = "core.img") -> int:
    """Decode the securebits (capabilities(7)). Raises IntegrityError if the image is damaged."""
    return read_single(data, name, magics.CORE).message(5).message(10).uint(13)


def decode_rights(found: Message) -> Rights:
    return Rights(
        uids=tuple(found.uint(number) for number in (1, 3, 5, 7)),
        gids=tuple(found.uint(number) for number in (2, 4, 6, 8)),
        groups=frozenset(found.uints(14)),
        capabilities=tuple(_bits(found, number) for number in CAPABILITIES.values()),
        confined=found.uint(18) > 0,
    )


def excess_rights(saved: Rights, had: Rights) -> Iterator[str]:
    """Return which of the saved rights the thread did not have."""
    # CRIU has code in the task's memory report this, and another process of the same user can write there during the
    # dump. So crckpt compares it with what the kernel says. Of two users neither has more rights: any difference
    # counts.
    if saved.uids != had.uids:
        yield f"user {saved.uids[1]}"
    if saved.gids != had.gids or not saved.groups <= had.groups:
        yield f"group {saved.gids[1]}"
    if any(one & ~other for one, other in zip(saved.capabilities, had.capabilities, strict=True)):
        yield "capabilities"
    if had.confined and not saved.confined:
        yield "programs with more rights (no_new_privs)"


def _bits(message: Message, number: int) -> int:
    # CRIU saves what capget(2) returns: words of 32 bits, the lowest first (criu/pie/parasite.c:325).
    return sum(word << 32 * place for place, word in enumerate(message.uints(number)))
