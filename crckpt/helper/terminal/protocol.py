"""The messages between the holder of a terminal, the crckpt that restores, and `crckpt attach`.

A holder may have been started by another release of crckpt, so messages keep their words and keys. The restore gets
answers to its requests, and the ends of programs that it started. A client sends, and gets, a byte with the kind of the
message, and its content.
"""

from __future__ import annotations

import struct
from typing import Final, Literal

from msgspec import Struct

LONGEST: Final = 64 << 10
"""Bytes of a message at most."""

DESCRIBE, ATTACH, RESIZE, INPUT = b"d", b"a", b"w", b"i"
"""What a client sends: DESCRIBE with its PID, ATTACH and RESIZE with a window size."""
DESCRIPTION, OUTPUT, REFUSED, ENDED = b"D", b"O", b"R", b"E"
"""What it gets: JSON, bytes of the terminal, a sentence, an exit status."""

_SIZE: Final = struct.Struct("=HHHH")


class HeldTree(Struct, frozen=True):
    """The tree of a terminal.

    - `root`, `start`: the PID of its root, as the host sees it, and when that was started
    - `program`: the PID of the root as the holder sees it, which may be in a PID namespace
    """

    root: int
    start: int
    program: int
    comm: str
    job: str
    checkpoint: str
    log: str


class HeldTerminal(Struct, frozen=True):
    """A terminal, as its holder describes it. `attached` is the PID of the crckpt that is attached, or 0."""

    holder: int
    tree: HeldTree
    attached: int = 0


class HolderRequest(Struct, frozen=True):
    """A request of the restore.

    - `start`: a program; with it come descriptors, for its output and then those that it gets as the numbers `keep`
    - `commit`: the tree runs
    - `abort`: end all that was started
    """

    do: Literal["start", "commit", "abort"]
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    keep: tuple[int, ...] = ()
    tree: HeldTree | None = None


class HolderAnswer(Struct, frozen=True):
    """An answer to the restore, or, with `ended`, the end of a child: its PID and wait status.

    The first answer has the path of the `log`. With `started`, the PID of a program, comes its pidfd.
    """

    log: str = ""
    started: int = 0
    failed: str = ""
    ended: tuple[int, int] | None = None


def encode_size(rows: int, columns: int) -> bytes:
    """Encode a window size (struct winsize, ioctl_tty(2))."""
    return _SIZE.pack(rows, columns, 0, 0)


def is_size(data: bytes) -> bool:
    """Return whether this can be a window size."""
    return len(data) == _SIZE.size


def encode_status(status: int) -> bytes:
    """Encode an exit status."""
    return struct.pack("=i", status)


def decode_status(data: bytes) -> int:
    """Decode an exit status; 1 if it cannot be decoded."""
    return int(struct.unpack("=i", data)[0]) if len(data) == 4 else 1
