"""Pipes and named pipes in `files.img`, and their content in `pipes-data.img`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_image
from crckpt.images.wire import Message
from crckpt.model import Count


class Pipe(Struct, frozen=True):
    """One end of a pipe. `pipe_id` is the pipe's inode, which both ends have (images/pipe.proto)."""

    kind: ClassVar[str] = "pipe"

    id: Annotated[Count, 1]
    pipe_id: Annotated[Count, 2]
    flags: Annotated[Count, 3]

    @property
    def title(self) -> str:
        """Its name in /proc/PID/fd."""
        return f"pipe:[{self.pipe_id}]"


class PipeContent(Struct, frozen=True):
    """The unread bytes in the pipe `pipe_id`, and the `size` of its buffer in bytes (images/pipe-data.proto)."""

    pipe_id: int
    size: int
    content: bytes


class Fifo(Struct, frozen=True):
    """A named pipe; the file `file_id` has its path and open flags (images/fifo.proto)."""

    kind: ClassVar[str] = "fifo"

    id: Annotated[int, 1]
    pipe_id: Annotated[int, 2]
    file_id: Annotated[int | None, 3]
    path: str = ""

    @property
    def title(self) -> str:
        return self.path or f"fifo:[{self.pipe_id}]"


def read_pipe_contents(data: bytes, name: str = "pipes-data.img") -> tuple[PipeContent, ...]:
    """Decode the image. Raises IntegrityError if it is damaged."""
    records = read_image(data, name, magics.PIPES_DATA).records
    found = ((Message(record.payload, name), record.extra) for record in records)
    return tuple(PipeContent(message.required(1), message.uint(3), content) for message, content in found)
