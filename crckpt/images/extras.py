"""Compute how many raw bytes follow a record. Each kind of image stores that differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.wire import Message


def extra_size(magic: int, payload: bytes, *, is_first: bool, rest: memoryview, name: str) -> int:
    """Return the bytes of raw data after a record; more than `rest` has if the image is cut short.

    `rest`: the image from the end of the record on. Raises IntegrityError if the record does not tell.
    """
    if magic == magics.GHOST_FILE:
        return _ghost(Message(payload, name), is_first, len(rest))
    if magic == magics.IPCNS_MSG:
        return _messages(Message(payload, name).uint(3), rest, name)
    size_of = _SIZES.get(magic)
    return size_of(Message(payload, name)) if size_of else 0


def _ghost(record: Message, is_first: bool, rest: int) -> int:
    # A file with holes: each further record is followed by one part of the content (criu/files-reg.c:218).
    if not is_first:
        return record.required(1)
    # Without `chunks` the whole content follows the only record (criu/files-reg.c:968).
    return 0 if record.flag(9) else rest


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


def _count_shared_memory(record: Message) -> int:
    # With `in_pagemaps` (3) the segment has a page map. Old CRIU put its content here (criu/ipc_ns.c:795).
    return 0 if record.flag(3) else _round_up(record.required(2), 4)


def _round_up(size: int, to: int) -> int:
    return -(-size // to) * to


_SIZES: Final[dict[int, Callable[[Message], int]]] = {
    # criu/pipes.c:455; named pipes have the same records.
    magics.PIPES_DATA: lambda record: record.required(2),
    magics.FIFO_DATA: lambda record: record.required(2),
    # criu/sk-queue.c:251.
    magics.SK_QUEUES: lambda record: record.required(2),
    # The receive queue, then the send queue (criu/sk-tcp.c:196).
    magics.TCP_STREAM: lambda record: record.required(1) + record.required(3),
    # All keys, then all values (criu/bpfmap.c:195).
    magics.BPFMAP_DATA: lambda record: record.required(2) + record.required(3),
    magics.IPCNS_SHM: _count_shared_memory,
    # 16-bit values (criu/ipc_ns.c:95).
    magics.IPCNS_SEM: lambda record: _round_up(2 * record.required(2), 8),
}
