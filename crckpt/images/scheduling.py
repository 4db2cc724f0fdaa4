"""Replace deadline scheduling in `core-TID.img`, which CRIU dumps but does not restore.

CRIU writes the policy without runtime, deadline and period, and refuses it at a restore (criu/cr-restore.c:
validate_sched_parm). It restores such threads with the default policy. crckpt sets theirs in the restore's hold.
"""

from __future__ import annotations

from typing import Final

from crckpt.images import magics
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.wire import VARINT, encode, fields

# Fields of core_entry and thread_core_entry (images/core.proto), then policies of sched(7).
_THREAD_CORE: Final = 5
_POLICY: Final = 4
_DEADLINE: Final = 6
_OTHER: Final = 0
_LOOKS_LIKE: Final = encode(((_POLICY, VARINT, _DEADLINE),))


def drop_deadline(core: bytes, name: str = "core.img") -> bytes:
    """Replace SCHED_DEADLINE with the default policy; return any other image unchanged. Raises IntegrityError."""
    # Few images have it, and a search is faster than decoding. A match by chance does no harm.
    if _LOOKS_LIKE not in core:
        return core
    image = read_image(core, name, magics.CORE)
    records = tuple(Record(_replace_policy(record.payload, name), record.extra) for record in image.records)
    return core if records == image.records else write_image(Image(image.magic, records))


def _replace_policy(payload: bytes, name: str) -> bytes:
    return encode(
        (
            number,
            kind,
            _replace_in_thread(value, name) if number == _THREAD_CORE and isinstance(value, bytes) else value,
        )
        for number, kind, value in fields(payload, name)
    )


def _replace_in_thread(thread: bytes, name: str) -> bytes:
    return encode(
        (number, kind, _OTHER if (number, value) == (_POLICY, _DEADLINE) else value)
        for number, kind, value in fields(thread, name)
    )
