"""Pipes and named pipes in `files.img`, and their content in `pipes-data.img`."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_image
from crckpt.images.wire import Message


class Pipe(Struct, frozen=True):
    """One end of a pipe; ends of the same pipe have the same `pipe_id`, the pipe's inode (images/pipe.proto)."""

    kind: ClassVar[str] = "pipe"

    id: int
    pipe_id: int
    flags: int

    @property
    def title(self) -> str:
        """As /proc/PID/fd has it."""
        return f"pipe:[{self.pipe_id}]"


class PipeContent(Struct, frozen=True):
    """The bytes that wait in the pipe `pipe_id`, and how many it takes (images/pipe-data.proto)."""

    pipe_id: int
    size: int
    content: bytes


class Fifo(Struct, frozen=True):
    """A named pipe; its path and open flags are those of the file `file_id` (images/fifo.proto)."""

    kind: ClassVar[str] = "fifo"

    id: int
    pipe_id: int
    file_id: int | None
    path: str = ""

    @property
    def title(self) -> str:
        """Its path."""
        return self.path or f"fifo:[{self.pipe_id}]"


def decode_pipe(message: Message) -> Pipe:
    """From a record of `files.img`."""
    return Pipe(*(message.required(number) for number in range(1, 4)))


def decode_fifo(message: Message) -> Fifo:
    """From a record of `files.img`; `path` is left empty."""
    return Fifo(message.required(1), message.required(2), message.optional(3))


def read_pipe_contents(data: bytes, name: str = "pipes-data.img") -> tuple[PipeContent, ...]:
    """Raises IntegrityError when the image is damaged."""
    records = read_image(data, name, magics.PIPES_DATA).records
    found = ((Message(record.payload, name), record.extra) for record in records)
    return tuple(PipeContent(message.required(1), message.uint(3), content) for message, content in found)
