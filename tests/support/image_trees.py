"""The recorded tree: its open files by name, and images of one record."""

from __future__ import annotations

from crckpt.images import wire
from crckpt.images.files import OpenFile
from crckpt.images.framing import Image, Record, write_image
from crckpt.images.tree import ImageProcess, ImageTree

WHERE = "/tmp/crckpt-images/run"

UNREAD_IMAGES = ("pagemap-", "pipes-data", "fifo-data", "sk-queues", "tcp-stream-", "timens-", "seccomp", "stats-")
"""Images that a tree does not need."""


def child(tree: ImageTree, state: str, *, own_session: bool = False) -> ImageProcess:
    """Return the root's child in this state."""
    (found,) = (
        process
        for process in tree.processes[1:]
        if process.state == state and (process.sid == process.pid) == own_session
    )
    return found


def one(magic: int, *items: tuple[int, int, int | bytes]) -> bytes:
    """Make an image with one record of these fields."""
    return write_image(Image(magic, (Record(wire.encode(items)),)))


def by_title(tree: ImageTree, title: str) -> OpenFile:
    """Return the open file of the root with this title."""
    found = {entry.file for entry in tree.root.descriptors if entry.file.title == title}
    assert len(found) == 1, [entry.file.title for entry in tree.root.descriptors]
    return found.pop()


def message(*values: int | bytes) -> bytes:
    """Make a message with `values` as fields 1, 2 ..."""
    kinds = ((wire.BYTES if isinstance(value, bytes) else wire.VARINT) for value in values)
    return wire.encode(zip(range(1, len(values) + 1), kinds, values, strict=True))


def image(magic: int, *records: tuple[bytes, bytes]) -> Image:
    """Make an image with these payloads and extras."""
    return Image(magic, tuple(Record(payload, extra) for payload, extra in records))
