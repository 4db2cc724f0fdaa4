"""Who gets the signals of a descriptor, in `files.img` (images/fown.proto)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_messages

# By the field of a file's entry in images/fdinfo.proto: the field of its owner.
_OWNER_FIELDS: Final = {
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


class SignalOwner(Struct, frozen=True):
    """Process or group `pid` gets the signals of open file `file_id` (F_SETOWN), as real and effective user `uids` may
    send them.
    """

    file_id: int
    uids: frozenset[int]
    pid: int


def read_signal_owners(data: bytes, name: str = "files.img") -> Iterator[SignalOwner]:
    """Decode the owners of all open files that have one. Raises IntegrityError if the image is damaged."""
    for message in read_messages(data, name, magics.FILES):
        for number, field in _OWNER_FIELDS.items():
            if number in message and field in (entry := message.message(number)):
                owner = entry.message(field)
                if pid := owner.uint(5):
                    yield SignalOwner(message.required(2), frozenset((owner.uint(1), owner.uint(2))), pid)
