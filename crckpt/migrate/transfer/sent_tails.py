"""What logs of a tree have gained, as it travels. Pure.

A log is a file that the tree has opened only to append to it. Unlike other files that it writes, it can be sent: what
was sent before never changes, so only the gained bytes, its tail, follow while the tree is frozen.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from crckpt.errors import IntegrityError
from crckpt.migrate.transfer.sent_files import AT_ONCE, SentFile, check_sent_file
from crckpt.model import MEBIBYTE, Count

_MOST_BYTES: Final = 16 * MEBIBYTE


class SentTail(Struct, frozen=True):
    """The bytes of a log from `start` on: size and digest of `file` are theirs.

    `before`: the digest of what is before them; empty if this connection has sent or compared that.
    """

    file: SentFile
    start: Count
    before: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""


SentTails = Annotated[tuple[SentTail, ...], Meta(max_length=AT_ONCE)]


def encode_tails(tails: tuple[SentTail, ...]) -> bytes:
    """Encode tails, without their content."""
    return msgspec.msgpack.encode(tails)


def decode_tails(content: bytes) -> tuple[SentTail, ...]:
    """Decode tails of another host. Raises IntegrityError."""
    if len(content) > _MOST_BYTES:
        raise IntegrityError(f"the list of sent logs has {len(content)} bytes; at most {_MOST_BYTES} are allowed")
    try:
        tails: tuple[SentTail, ...] = msgspec.msgpack.decode(content, type=SentTails)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(f"the list of sent logs cannot be read: {error}") from error
    for tail in tails:
        check_sent_file(tail.file)
        if tail.file.is_directory:
            raise IntegrityError("the list of sent logs has a directory")
    return tails
