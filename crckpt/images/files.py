"""`files.img`: every open file of a tree, once (images/fdinfo.proto, file_entry)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final, TypeAlias

from msgspec import Struct

from crckpt.images import magics, other_files, regfile, sockets, tty
from crckpt.images.decode import decode
from crckpt.images.framing import edit_image, read_messages
from crckpt.images.wire import BYTES, Message, edit_field, encode, fields

OpenFile: TypeAlias = (
    regfile.RegularFile
    | sockets.InetSocket
    | sockets.UnixSocket
    | sockets.NetlinkSocket
    | sockets.PacketSocket
    | other_files.Pipe
    | other_files.Fifo
    | tty.Terminal
    | other_files.MemFd
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


def renumber_devices(data: bytes, numbers: Mapping[int, int], name: str = "files.img") -> bytes:
    """Bind packet sockets, and their memberships, to network devices with other numbers. Raises IntegrityError."""

    def renumber(number: int | bytes) -> int | bytes:
        return numbers.get(number, number) if isinstance(number, int) else number

    def edit(payload: bytes, name: str) -> bytes:
        if Message(payload, name).required(1) != _PACKET:
            return payload
        for path in _DEVICES:
            payload = edit_field(payload, path, renumber, name)
        return payload

    return edit_image(data, name, magics.FILES, edit)


class SignalOwner(Struct, frozen=True):
    """Process, thread or group `pid` gets the signals of open file `file_id` (F_SETOWN_EX: `kind`), as the real and the
    effective user of `uids` may send them.
    """

    file_id: int
    kind: int
    pid: int
    uids: tuple[int, int]


def read_signal_owners(data: bytes, name: str = "files.img") -> Iterator[SignalOwner]:
    """Decode the owners of all open files that have one. Raises IntegrityError if the image is damaged."""
    for message in read_messages(data, name, magics.FILES):
        for number, field in _OWNERS.items():
            owner = message.message(number, field)
            if pid := owner.uint(5):
                yield SignalOwner(message.required(2), owner.uint(4), pid, (owner.uint(1), owner.uint(2)))


def _open_file(message: Message) -> OpenFile:
    kind, file_id = message.required(1), message.required(2)
    if kind in _DECODERS:
        number, decode_entry = _DECODERS[kind]
        return decode_entry(message.message(number))
    number, flags, title = _OTHERS.get(kind, (0, 0, "unknown"))
    return other_files.OtherFile(file_id, title, message.message(number).uint(flags) if flags else 0)


# Packet sockets; the paths of the numbers of devices (images/packet-sock.proto): their own, and of memberships.
_PACKET: Final = 10
_DEVICES: Final = ((6, 5), (6, 16, 1))

# For each file type, the field with its entry and what decodes that.
_DECODERS: Final[dict[int, tuple[int, Callable[[Message], OpenFile]]]] = {
    1: (3, partial(decode, regfile.RegularFile)),
    2: (18, partial(decode, other_files.Pipe)),
    3: (17, partial(decode, other_files.Fifo)),
    4: (4, partial(decode, sockets.InetSocket)),
    5: (16, partial(decode, sockets.UnixSocket)),
    7: (9, partial(decode, other_files.EventPoll)),
    8: (13, other_files.decode_inotify),
    10: (6, partial(decode, sockets.PacketSocket)),
    11: (19, partial(decode, tty.Terminal)),
    12: (14, other_files.decode_fanotify),
    13: (7, partial(decode, sockets.NetlinkSocket)),
    18: (20, partial(decode, other_files.MemFd)),
    20: (22, partial(decode, other_files.PidFd)),
}

# For each file type that has a path, the field with its entry and the field of the path or its directory.
_PATHS: Final = {1: (3, 6), 5: (16, 14)}
# Of the entry of a regular file.
_SIZE: Final = 8

# For each file type, the field with its entry, there that of the open flags (0: nowhere), and its kind.
_OTHERS: Final = {
    6: (8, 2, "eventfd"),
    9: (10, 2, "signalfd"),
    14: (5, 4, "namespace"),
    15: (11, 0, "tun device"),
    16: (15, 0, "external file"),
    17: (12, 2, "timerfd"),
    19: (21, 2, "bpf map"),
}

# For each field with the entry of a file, the field there of who gets its signals (images/fown.proto).
_OWNERS: Final = {
    3: 5,  # regfile.proto
    4: 13,  # sk-inet.proto
    6: 6,  # packet-sock.proto
    7: 11,  # sk-netlink.proto
    8: 3,  # eventfd.proto
    9: 3,  # eventpoll.proto
    10: 3,  # signalfd.proto
    12: 3,  # timerfd.proto
    13: 4,  # fsnotify.proto
    14: 3,
    15: 5,  # ext-file.proto
    16: 9,  # sk-unix.proto
    18: 4,  # pipe.proto
    19: 4,  # tty.proto
    20: 4,  # memfd.proto
    21: 4,  # bpfmap-file.proto
    22: 5,  # pidfd.proto
}
