"""Repair what CRIU writes into images and cannot restore from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from crckpt.images import magics
from crckpt.images.decode import decode
from crckpt.images.framing import Image, edit_image, read_image, write_image
from crckpt.images.sockets import UnixSocket
from crckpt.images.wire import BYTES, VARINT, Message, edit_field, encode

# Of file_entry (images/fdinfo.proto): the field of the type, that of unix sockets, and the field of their entry.
_TYPE, _UNIX, _UNIX_ENTRY = 1, 5, 16
# The field of file_entry, then fields of timerfd_entry (images/timerfd.proto).
_TIMERFD: Final = 12
_TICKS, _VALUE_S, _VALUE_NS, _INTERVAL_S, _INTERVAL_NS = 5, 7, 8, 9, 10
# The field of the entry of a file, and its fields of the flags and of who gets its signals: of files with a path, of
# terminals, inotify descriptors and pidfds (images/{regfile,tty,fsnotify,pidfd}.proto). Then the flags to leave out.
_ALL_BUT: Final = ~(os.O_NONBLOCK | os.O_CLOEXEC)
_FLAGS: Final = (
    (3, 2, 5, os.O_ASYNC),
    (19, 3, 4, os.O_ASYNC),
    (13, 2, None, _ALL_BUT),
    (22, 3, None, _ALL_BUT & ~os.O_EXCL),
)
# The policy in thread_core_entry in core_entry (images/core.proto), then policies of sched(7).
_POLICY: Final = (5, 4)
_DEADLINE: Final = 6
_OTHER: Final = 0
_LOOKS_LIKE_DEADLINE: Final = encode(((_POLICY[-1], VARINT, _DEADLINE),))


def repair_image(name: str) -> Callable[[bytes], bytes] | None:
    """Return what repairs the content of the image of that name; None for images that need no repair."""
    if name == "files.img":
        return lambda content: put_listeners_first(drop_status_flags(rearm_timers(content)))
    return drop_deadline if name.startswith("core-") else None


def put_listeners_first(data: bytes, name: str = "files.img") -> bytes:
    """Put listening unix sockets before all other files; nothing else changes. Raises IntegrityError.

    CRIU looks for the listener at which a connection waits to be accepted only among the files before the connection,
    and fails if it is not there (criu/sk-unix.c, try_resolve_unix_peer).
    """

    def is_listener(message: Message) -> bool:
        is_unix = message.required(_TYPE) == _UNIX
        return is_unix and decode(UnixSocket, message.message(_UNIX_ENTRY)).is_listening

    image = read_image(data, name, magics.FILES)
    records = tuple(sorted(image.records, key=lambda record: not is_listener(Message(record.payload, name))))
    return data if records == image.records else write_image(Image(image.magic, records))


def rearm_timers(files: bytes, name: str = "files.img") -> bytes:
    """Let every periodic timerfd with an unread expiry fire after one interval; change nothing else. IntegrityError.

    The kernel arms an expired periodic timerfd again when the program reads it. Until then its fdinfo shows no time
    left, and CRIU restores it as disarmed (criu/timerfd.c: prepare_timerfds): it would never fire again.
    """

    def rearm(payload: bytes, name: str) -> bytes:
        message = Message(payload, name)
        timer = message.message(_TIMERFD)
        waits = timer.uint(_VALUE_S) or timer.uint(_VALUE_NS)
        periodic = timer.uint(_INTERVAL_S) or timer.uint(_INTERVAL_NS)
        # A one-shot timer that has fired is rightly restored disarmed.
        if waits or not periodic or not timer.uint(_TICKS):
            return payload
        # The last of several fields with the same number counts, both in the entry and for the entry itself.
        left = ((_VALUE_S, VARINT, timer.uint(_INTERVAL_S)), (_VALUE_NS, VARINT, timer.uint(_INTERVAL_NS)))
        return payload + encode(((_TIMERFD, BYTES, message.octets(_TIMERFD) + encode(left)),))

    return edit_image(files, name, magics.FILES, rearm)


def drop_status_flags(files: bytes, name: str = "files.img") -> bytes:
    """Leave out flags that only F_SETFL can set: crckpt does in the restore's hold. Raises IntegrityError.

    With O_ASYNC the kernel opens a file that sends no signals, and never will: F_SETFL sees that the flag is set. The
    calls that make an inotify descriptor or a pidfd fail. If O_ASYNC was set but nobody gets signals, they may never
    have been turned on: then it stays.
    """

    def drop(payload: bytes, name: str) -> bytes:
        message = Message(payload, name)
        for entry, field, owner, dropped in _FLAGS:
            flags = message.message(entry).uint(field)
            if flags & dropped and (owner is None or message.message(entry, owner).uint(5)):
                left = encode(((field, VARINT, flags & ~dropped),))
                return payload + encode(((entry, BYTES, message.octets(entry) + left),))
        return payload

    return edit_image(files, name, magics.FILES, drop)


def drop_deadline(core: bytes, name: str = "core.img") -> bytes:
    """Replace SCHED_DEADLINE with the default policy; return any other image unchanged. Raises IntegrityError.

    CRIU writes the policy without runtime, deadline and period, and refuses it at a restore (criu/cr-restore.c:
    validate_sched_parm). crckpt sets those of the threads in the restore's hold.
    """
    # Few images have it, and a search is faster than decoding. A match by chance does no harm.
    if _LOOKS_LIKE_DEADLINE not in core:
        return core

    def replace(policy: int | bytes) -> int | bytes:
        return _OTHER if policy == _DEADLINE else policy

    return edit_image(core, name, magics.CORE, lambda core, name: edit_field(core, _POLICY, replace, name))
