"""`files.img`: every open file of a tree, once (images/fdinfo.proto, file_entry)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

from crckpt.images import magics, memfd, other_files, pipes, regfile, sockets, tty
from crckpt.images.framing import Image, edit_image, read_image, read_messages, write_image
from crckpt.images.wire import BYTES, Message, encode, fields

OpenFile: TypeAlias = (
    regfile.RegularFile
    | sockets.InetSocket
    | sockets.UnixSocket
    | sockets.NetlinkSocket
    | sockets.PacketSocket
    | pipes.Pipe
    | pipes.Fifo
    | tty.Terminal
    | memfd.MemFd
    | other_files.EventPoll
    | other_files.PidFd
    | other_files.Watch
    | other_files.OtherFile
)
"""An open file of any type. All have `id`, and for display `kind` and `title`."""


def read_files(data: bytes, name: str = "files.img") -> tuple[OpenFile, ...]:
    """Decode all open files. The paths of remapped files, pipes and terminals are not resolved yet.

    An unknown type becomes an `OtherFile` of kind "unknown". Raises IntegrityError if the image is damaged.
    """
    return tuple(_open_file(message) for message in read_messages(data, name, magics.FILES))


def edit_files(data: bytes, paths: Mapping[int, str], unsized: Collection[int] = (), name: str = "files.img") -> bytes:
    """Give regular files other paths, and unix sockets other directories, by file id. Raises IntegrityError.

    CRIU then does not compare the sizes of the files that are `unsized`.
    """

    def edit(payload: bytes, name: str) -> bytes:
        message = Message(payload, name)
        entry, path = _PATHS.get(message.required(1), (0, 0))
        new, is_unsized = paths.get(message.required(2)), message.required(2) in unsized
        if not entry or (new is None and not is_unsized):
            return payload
        kept = (
            (number, kind, value if new is None or number != path else os.fsencode(new))
            for number, kind, value in fields(message.octets(entry), name)
            if not (number == _SIZE and is_unsized)
        )
        return encode((*(each for each in fields(payload, name) if each[0] != entry), (entry, BYTES, encode(kept))))

    return edit_image(data, name, magics.FILES, edit)


def put_listeners_first(data: bytes, name: str = "files.img") -> bytes:
    """Put listening unix sockets before all other files; nothing else changes. Raises IntegrityError.

    CRIU looks for the listener at which a connection waits to be accepted only among the files before the connection,
    and fails if it is not there (criu/sk-unix.c, try_resolve_unix_peer).
    """
    image = read_image(data, name, magics.FILES)
    records = tuple(sorted(image.records, key=lambda record: not _is_listener(Message(record.payload, name))))
    return data if records == image.records else write_image(Image(image.magic, records))


def _is_listener(message: Message) -> bool:
    entry, _ = _PATHS[_UNIX]
    return message.required(1) == _UNIX and sockets.decode_unix_socket(message.message(entry)).is_listening


def _open_file(message: Message) -> OpenFile:
    kind, file_id = message.required(1), message.required(2)
    if kind in _DECODERS:
        number, decode = _DECODERS[kind]
        return decode(message.message(number))
    number, title = _OTHERS.get(kind, (0, "unknown"))
    return other_files.OtherFile(file_id, title, _flags(message, number))


def _flags(message: Message, number: int) -> int:
    # Most of these entries have their open flags in field 2, namespaces in 4, the rest nowhere.
    if number in _WITHOUT_FLAGS:
        return 0
    return message.message(number).uint(4 if number == _NAMESPACE else 2)


_NAMESPACE: Final = 5
_WITHOUT_FLAGS: Final = frozenset({0, 11, 15})

# For each file type, the field with its entry and the decoder.
_DECODERS: Final[dict[int, tuple[int, Callable[[Message], OpenFile]]]] = {
    1: (3, regfile.decode_regular_file),
    2: (18, pipes.decode_pipe),
    3: (17, pipes.decode_fifo),
    4: (4, sockets.decode_inet_socket),
    5: (16, sockets.decode_unix_socket),
    7: (9, other_files.decode_event_poll),
    8: (13, other_files.decode_inotify),
    10: (6, sockets.decode_packet_socket),
    11: (19, tty.decode_terminal),
    12: (14, other_files.decode_fanotify),
    13: (7, sockets.decode_netlink_socket),
    18: (20, memfd.decode_memfd),
    20: (22, other_files.decode_pidfd),
}

_UNIX: Final = 5
# For each file type that has a path, the field with its entry and the field of the path or its directory.
_PATHS: Final = {1: (3, 6), _UNIX: (16, 14)}
# Of the entry of a regular file.
_SIZE: Final = 8

# For each file type, the field with its entry and its kind.
_OTHERS: Final = {
    6: (8, "eventfd"),
    9: (10, "signalfd"),
    14: (_NAMESPACE, "namespace"),
    15: (11, "tun device"),
    16: (15, "external file"),
    17: (12, "timerfd"),
    19: (21, "bpf map"),
}
