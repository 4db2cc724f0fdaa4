"""Rearm periodic timerfds in `files.img` that CRIU would restore disarmed.

The kernel arms an expired periodic timerfd again when the program reads it. Until then its fdinfo shows no time left,
and CRIU restores it as disarmed (criu/timerfd.c: prepare_timerfds): it would never fire again.
"""

from __future__ import annotations

from typing import Final

from crckpt.images import magics
from crckpt.images.framing import edit_image
from crckpt.images.wire import BYTES, VARINT, Message, encode

# The field of file_entry, then fields of timerfd_entry (images/timerfd.proto).
_TIMERFD: Final = 12
_TICKS, _VALUE_S, _VALUE_NS, _INTERVAL_S, _INTERVAL_NS = 5, 7, 8, 9, 10


def rearm_timers(files: bytes, name: str = "files.img") -> bytes:
    """Let every periodic timer with an unread expiry fire after one interval; change nothing else in `files.img`.

    Raises IntegrityError.
    """
    return edit_image(files, name, magics.FILES, _rearm)


def _rearm(payload: bytes, name: str) -> bytes:
    message = Message(payload, name)
    if _TIMERFD not in message:
        return payload
    timer = message.message(_TIMERFD)
    waits = timer.uint(_VALUE_S) or timer.uint(_VALUE_NS)
    periodic = timer.uint(_INTERVAL_S) or timer.uint(_INTERVAL_NS)
    # A one-shot timer that has fired is rightly restored disarmed.
    if waits or not periodic or not timer.uint(_TICKS):
        return payload
    # The last of several fields with the same number counts, both in the entry and for the entry itself.
    left = ((_VALUE_S, VARINT, timer.uint(_INTERVAL_S)), (_VALUE_NS, VARINT, timer.uint(_INTERVAL_NS)))
    return payload + encode(((_TIMERFD, BYTES, message.octets(_TIMERFD) + encode(left)),))
