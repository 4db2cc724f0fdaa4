"""The layout of an image file: magic numbers, then records `u32 size | protobuf | extra`.

All numbers are little endian. `inventory.img` has its own magic only. Every other image has a common magic before it,
or for `stats-*` and `irmap-cache` a service magic. The size of the extra bytes follows from the record. `pages-N.img`,
tarballs and firewall dumps are raw and have none of this. Sources: criu/image.c:570, criu/protobuf.c:121.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.wire import Message

_U32 = struct.Struct("<I")


class Record(Struct, frozen=True):
    """A protobuf message and the raw bytes that belong to it (data of a pipe, content of a deleted file)."""

    payload: bytes
    extra: bytes = b""


class Image(Struct, frozen=True):
    """An image file: its own magic, and its records in order."""

    magic: int
    records: tuple[Record, ...]


def read_image(data: bytes, name: str = "image", magic: int | None = None) -> Image:
    """Split an image file into records.

    `name`: how errors call it. `magic`: the only kind of image to accept. Raises IntegrityError if the image is cut
    short or its sizes contradict each other.
    """
    found, at = _read_magic(data, name, magic)
    records: list[Record] = []
    while at < len(data):
        payload, at = _read_payload(data, at, name)
        # A view: a copy of the rest for each record would cost time in the square of their number.
        end = at + extra_size(found, payload, is_first=not records, rest=memoryview(data)[at:], name=name)
        records.append(Record(payload, _part(data, at, end, name)))
        at = end
    return Image(found, tuple(records))


def read_messages(data: bytes, name: str, magic: int) -> tuple[Message, ...]:
    """Return the messages of an image of the kind `magic`, without extras. Raises as `read_image` does."""
    return tuple(Message(record.payload, name) for record in read_image(data, name, magic).records)


def read_head(data: bytes, name: str, magic: int) -> tuple[Message, bytes]:
    """Return the first message of an image of the kind `magic`, and the bytes after it.

    Raises IntegrityError as `read_image` does, and if there is no message.
    """
    _, at = _read_magic(data, name, magic)
    if at == len(data):
        raise IntegrityError(f"{name}: the head is missing")
    payload, at = _read_payload(data, at, name)
    return Message(payload, name), data[at:]


def read_single(data: bytes, name: str, magic: int) -> Message:
    """Return the message of an image that has exactly one. Raises IntegrityError if it has none or more."""
    messages = read_messages(data, name, magic)
    if len(messages) != 1:
        raise IntegrityError(f"{name}: {len(messages)} records instead of one")
    return messages[0]


def write_image(image: Image) -> bytes:
    """Join the records to an image file: the inverse of `read_image`."""
    first = magics.SERVICE if image.magic in magics.SERVICE_IMAGES else magics.COMMON
    parts = [_U32.pack(image.magic)] if image.magic == magics.INVENTORY else [_U32.pack(first), _U32.pack(image.magic)]
    for record in image.records:
        parts += [_U32.pack(len(record.payload)), record.payload, record.extra]
    return b"".join(parts)


def edit_image(
    data: bytes, name: str, magic: int | None, edit: Callable[[bytes, str], bytes | None], *more: bytes
) -> bytes:
    """Replace each message with `edit(message, name)`, where None removes it, and append `more`.

    Raises as `read_image` does.
    """
    image = read_image(data, name, magic)
    edited = ((edit(record.payload, name), record.extra) for record in image.records)
    records = (*(Record(payload, extra) for payload, extra in edited if payload is not None), *map(Record, more))
    return data if records == image.records else write_image(Image(image.magic, records))


def _read_magic(data: bytes, name: str, wanted: int | None) -> tuple[int, int]:
    """Read the magic numbers; return that of the image, and where its first record begins."""
    first = magic = _read_u32(data, 0, name)
    at = 4
    if first != magics.INVENTORY:
        if first not in (magics.COMMON, magics.SERVICE):
            raise IntegrityError(f"{name}: not an image file of CRIU (begins with {first:#010x})")
        magic, at = _read_u32(data, 4, name), 8
        # CRIU also refuses a file whose two magics do not match (criu/image.c, img_check_magic).
        if magic == magics.INVENTORY or (first == magics.SERVICE) != (magic in magics.SERVICE_IMAGES):
            raise IntegrityError(f"{name}: magic numbers {first:#010x} and {magic:#010x} do not match")
    if wanted not in (None, magic):
        raise IntegrityError(f"{name}: magic {magic:#010x} instead of {wanted:#010x}")
    return magic, at


def _read_u32(data: bytes, at: int, name: str) -> int:
    number: int = _U32.unpack(_part(data, at, at + 4, name))[0]
    return number


def _read_payload(data: bytes, at: int, name: str) -> tuple[bytes, int]:
    end = at + 4 + _read_u32(data, at, name)
    return _part(data, at + 4, end, name), end


def _part(data: bytes, start: int, end: int, name: str) -> bytes:
    if end > len(data):
        raise IntegrityError(f"{name}: cut short, {end - len(data)} bytes are missing at offset {start}")
    return data[start:end]


def extra_size(magic: int, payload: bytes, *, is_first: bool, rest: memoryview, name: str) -> int:
    """Return the bytes of raw data after a record; more than `rest` has if the image is cut short.

    `rest`: the image from the end of the record on. Raises IntegrityError if the record does not tell.
    """
    if magic in _SIZES:
        return sum(map(Message(payload, name).required, _SIZES[magic]))
    if magic not in _OTHER_EXTRAS:
        return 0
    record = Message(payload, name)
    if magic == magics.GHOST_FILE:
        # A file with holes: each further record is followed by one part of the content (criu/files-reg.c:218). Without
        # `chunks` the whole content follows the only record (criu/files-reg.c:968).
        return record.required(1) if not is_first else 0 if record.uint(9) else len(rest)
    if magic == magics.IPCNS_SHM:
        # With `in_pagemaps` (3) the segment has a page map. Old CRIU put its content here (criu/ipc_ns.c:795).
        return 0 if record.uint(3) else _round_up(record.required(2), 4)
    if magic == magics.IPCNS_SEM:
        # 16-bit values (criu/ipc_ns.c:95).
        return _round_up(2 * record.required(2), 8)
    return _messages(record.uint(3), rest, name)


def _messages(count: int, rest: memoryview, name: str) -> int:
    """Return the size of a System V message queue: `count` times size, protobuf, and text padded to eight bytes."""
    # Source: criu/ipc_ns.c:209.
    at = 0
    for _ in range(count):
        if at + 4 > len(rest):
            raise IntegrityError(f"{name}: cut short inside a message queue")
        start = at + 4
        end = start + int.from_bytes(rest[at:start], "little")
        at = end + _round_up(Message(bytes(rest[start:end]), name).required(2), 8)
    return at


def _round_up(size: int, to: int) -> int:
    return -(-size // to) * to


# The fields of a record whose sum is the size of its extra bytes.
_SIZES: Final = {
    # criu/pipes.c:455; named pipes have the same records.
    magics.PIPES_DATA: (2,),
    magics.FIFO_DATA: (2,),
    # criu/sk-queue.c:251.
    magics.SK_QUEUES: (2,),
    # The receive queue, then the send queue (criu/sk-tcp.c:196).
    magics.TCP_STREAM: (1, 3),
    # All keys, then all values (criu/bpfmap.c:195).
    magics.BPFMAP_DATA: (2, 3),
}
_OTHER_EXTRAS: Final = frozenset({magics.GHOST_FILE, magics.IPCNS_SHM, magics.IPCNS_SEM, magics.IPCNS_MSG})
