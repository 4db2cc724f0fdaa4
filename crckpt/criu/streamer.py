"""Serve image files to a `criu restore --stream`, each through a pipe. No file is written to a disk.

CRIU connects to a socket in its images directory. For every file that it wants it sends a name (u32 length, protobuf
message with the name in field 1), gets an answer (likewise, field 1: whether it exists), and sends the end of a pipe
to write the file to. Source: criu/img-streamer.c, images/img-streamer.proto.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from crckpt.host.process.signals import interrupt_is_waiting
from crckpt.host.syscalls.process_vm import Lender
from crckpt.images.wire import Message

Images = Callable[[str], Iterator[memoryview] | None]
"""Returns the content of an image file in parts; None if there is no such file.

Pipes refer to the pages of parts that are writable memory. These must stay as they are until parts of PIPE_SIZE bytes
more have been asked for; so the last PIPE_SIZE bytes are to be read-only.
"""

_SOCKET: Final = "streamer-serve.sock"
_LENGTH: Final = struct.Struct("<I")
_NAME: Final = 1
# Bytes that an empty pipe holds.
_AT_ONCE: Final = 1 << 16
_EXISTS: Final = b"\x08\x01"
_MISSING: Final = b"\x08\x00"


class Streamer:
    """Serves image files to one CRIU, which must inherit `descriptor`, and has `directory` as its images directory.

    CRIU may be started before there is anything to serve: it waits for its first image.
    """

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is of a private directory: its path may be too long for a socket."""
        self.descriptor = descriptor
        self.directory = Path(f"/proc/self/fd/{descriptor}")
        # CRIU may ask before there is anything to serve: then the server waits here.
        self._promised: SimpleQueue[Images | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        # The socket's file gets the mode that the socket has when it is bound.
        os.fchmod(self._listener.fileno(), 0o600)
        self._listener.bind(str(self.directory / _SOCKET))
        self._listener.listen(1)
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._server.start()

    def serve(self, images: Images) -> None:
        """Begin to serve these images."""
        self._promised.put(images)

    def refuse(self) -> None:
        """Serve no images, unless it has begun: a CRIU that waits for them ends without having done anything."""
        self._promised.put(None)

    def check(self) -> None:
        """Raise what failed while a file was served, if anything did. CRIU got a truncated file then."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the server, after CRIU has ended."""
        self.refuse()
        # close(2) alone would not wake the thread that waits for a connection.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._server.join()
        self._listener.close()

    def _serve(self) -> None:
        feeders: list[threading.Thread] = []
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # CRIU has ended without it
        try:
            with connection:
                images = self._promised.get()
                while images is not None:
                    header = connection.recv(_LENGTH.size, socket.MSG_WAITALL)
                    if len(header) < _LENGTH.size:
                        break
                    request = connection.recv(_LENGTH.unpack(header)[0], socket.MSG_WAITALL)
                    feeders += self._answer(connection, images, Message(request, "CRIU's request").text(_NAME))
        except ConnectionError:
            pass  # CRIU has failed and says why
        # Of any kind: CRIU sees the connection end and undoes its work; `check` raises it then.
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            for feeder in feeders:
                feeder.join()

    def _answer(self, connection: socket.socket, images: Images, name: str) -> tuple[threading.Thread, ...]:
        image = images(name)
        answer = _MISSING if image is None else _EXISTS
        connection.sendall(_LENGTH.pack(len(answer)) + answer)
        if image is None:
            return ()
        _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(_LENGTH.size), socket.MSG_CMSG_CLOEXEC)
        if not ancillary:
            raise ConnectionAbortedError("CRIU ended during a request")
        (pipe,) = array.array("i", ancillary[0][2])
        # CRIU splices other files to where they belong, and only copies from these.
        lent = name.startswith("pages-")
        rest = image if lent else _without_small(image, pipe)
        if rest is None:
            return ()
        feeder = threading.Thread(target=self._feed, args=(rest, pipe), kwargs={"lent": lent}, daemon=True)
        feeder.start()
        return (feeder,)

    def _feed(self, image: Iterator[memoryview], pipe: int, *, lent: bool) -> None:
        try:
            with closing(Lender(pipe)) as lender:
                for content in image:
                    while content:
                        # An interruption ends the pipe early: CRIU sees a truncated file and undoes its work.
                        if interrupt_is_waiting():
                            return
                        borrows = lent and not content.readonly
                        content = content[lender.lend(content) if borrows else os.write(pipe, content) :]
        except BrokenPipeError:
            pass  # CRIU has what it wants of it, or has failed and says why
        # Of any kind: CRIU sees a truncated file and undoes its work; `check` raises it then.
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            os.close(pipe)


@contextmanager
def serving(directory: Path) -> Iterator[Streamer]:
    """Make a streamer with its socket in the private `directory`, and close it after the block."""
    with ExitStack() as stack:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        yield stack.enter_context(closing(Streamer(descriptor)))


def _without_small(image: Iterator[memoryview], pipe: int) -> Iterator[memoryview] | None:
    """Return the image; None if it is so small that all of it was written to the pipe, which is closed then."""
    # A thread for each small image would wait for its turn among the threads that unpack.
    try:
        first = next(image, memoryview(b""))
        if len(first) > _AT_ONCE:
            return chain((first,), image)
        # The part may change once the next one is asked for: copy it.
        first = memoryview(bytes(first))
        second = next(image, None)
        if second is not None:
            return chain((first, second), image)
        with suppress(BrokenPipeError):  # CRIU has what it wants of it
            os.write(pipe, first)
    except BaseException:
        os.close(pipe)
        raise
    os.close(pipe)
    return None
