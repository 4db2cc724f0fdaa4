"""Threads with deadline scheduling, which CRIU dumps and does not restore.

CRIU writes their policy and no runtime, deadline or period, and refuses that policy at a restore (criu/cr-restore.c:
validate_sched_parm). Under the usual policy it restores them; what they had is set by crckpt in the restore's hold.
"""

from __future__ import annotations

from typing import Final

from crckpt.images import magics
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.wire import VARINT, encode, fields

_THREAD_CORE: Final = 5
_POLICY: Final = 4
_DEADLINE: Final = 6
_OTHER: Final = 0
_LOOKS_LIKE: Final = encode(((_POLICY, VARINT, _DEADLINE),))


def drop_deadline(core: bytes, name: str = "core.img") -> bytes:
    """Replace SCHED_DEADLINE by the usual policy in `core-TID.img`; keep any other image. Raises IntegrityError."""
    if _LOOKS_LIKE not in core:
        return core
    image = read_image(core, name, magics.CORE)
    records = tuple(Record(_changed(record.payload, name), record.extra) for record in image.records)
    return core if records == image.records else write_image(Image(image.magic, records))


def _changed(payload: bytes, name: str) -> bytes:
    return encode(
        (number, kind, _usual(value, name) if number == _THREAD_CORE and isinstance(value, bytes) else value)
        for number, kind, value in fields(payload, name)
    )


def _usual(thread: bytes, name: str) -> bytes:
    return encode(
        (number, kind, _OTHER if (number, value) == (_POLICY, _DEADLINE) else value)
        for number, kind, value in fields(thread, name)
    )
