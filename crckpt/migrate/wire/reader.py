"""The thread that reads frames, and checks them before it takes memory for what they declare."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from crckpt.errors import CrckptError, RemoteError
from crckpt.host.process.signals import start_thread
from crckpt.host.steps import limit
from crckpt.migrate.wire import frames, messages
from crckpt.migrate.wire.connection_errors import (
    ConnectionEnded,
    ConnectionLost,
    PrintedText,
    ProtocolError,
    make_broken_error,
)
from crckpt.migrate.wire.events import Event
from crckpt.migrate.wire.frames import unpack
from crckpt.migrate.wire.messages import MoveMessage

# ssh may ask the user for a password before anything comes.
_FIRST_S: Final = limit("CRCKPT_FIRST_S", 300)
# Of text that comes where messages should.
_MOST_TEXT: Final = 4 << 10
_TEXT_S: Final = 1.0
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1a]")


class ConnectionReader:
    """Reads frames from a descriptor in a thread until the connection is lost."""

    def __init__(
        self,
        descriptor: int,
        peer: str,
        patience_s: float,
        take_message: Callable[[MoveMessage, int], None],
        take_data: Callable[[int, memoryview], None],
        on_lost: Callable[[CrckptError], None],
    ) -> None:
        """Call these from the thread: with messages, with data, and at the end. The first two may raise BadFrame."""
        self._descriptor = descriptor
        self._peer = peer
        self._silence_s = max(_FIRST_S, patience_s)
        self._patience_s = patience_s
        self._take_message, self._take_data, self._on_lost = take_message, take_data, on_lost
        self._end = Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = start_thread(self._read_all)

    def stop(self) -> None:
        """Read no more."""
        self._end.set()

    def close(self) -> None:
        """Stop, wait for the end of the thread, and close the descriptor."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        os.close(self._descriptor)
        self._end.close()

    def _read_all(self) -> None:
        try:
            self._read_frames()
        except _Stopped:
            return
        except CrckptError as error:
            self._on_lost(error)
        except frames.BadFrame as error:
            self._on_lost(ProtocolError(self._peer, str(error)))
        except OSError as error:
            self._on_lost(make_broken_error(self._peer, error))

    def _read_frames(self) -> None:
        buffer = memoryview(bytearray(frames.MOST_PAYLOAD))
        header_buffer = memoryview(bytearray(frames.HEADER_BYTES))
        parts = bytearray()
        try:
            self._read_into(header_buffer)
        except ConnectionEnded:
            if (text := bytes(header_buffer).rstrip(b"\0")) and not _NO_TEXT.search(text):
                raise PrintedText(self._peer, text.decode(errors="replace"), has_ended=True) from None
            raise
        header = self._read_header(header_buffer, has_begun=False)
        self._silence_s = self._patience_s
        while True:
            payload = buffer[: header.length]
            self._read_into(payload)
            if frames.make_checksum(header, payload) != header.crc:
                raise frames.BadFrame(f"{frames.NAMES[header.kind]} with a wrong checksum")
            if header.kind == frames.DATA:
                self._take_data(header.channel, payload)
            elif header.kind == frames.PACKED:
                self._take_data(header.channel, unpack(payload))
            elif header.kind != frames.BEAT:
                if len(parts) + len(payload) > messages.MOST_BYTES:
                    raise frames.BadFrame(f"a message of more than {messages.MOST_BYTES} bytes")
                parts += payload
                if header.kind == frames.MESSAGE:
                    self._take_message(self._decode(bytes(parts)), len(parts))
                    parts = bytearray()
            self._read_into(header_buffer)
            header = self._read_header(header_buffer, has_begun=True)

    def _read_header(self, content: memoryview, *, has_begun: bool) -> frames.Header:
        try:
            return frames.read_header(content)
        except frames.BadFrame:
            # Text has bytes that are no length of a frame.
            if has_begun and _NO_TEXT.search(content):
                raise
            text, has_ended = self._read_text(content)
            raise PrintedText(self._peer, text, has_begun=has_begun, has_ended=has_ended) from None

    def _decode(self, content: bytes) -> MoveMessage:
        try:
            return messages.decode(content)
        except messages.OtherProtocol as error:
            protocol, version = error.args
            raise RemoteError(
                f"{self._peer} has crckpt {version}, which speaks version {protocol} of the migration "
                f"protocol; crckpt on this host speaks version {messages.PROTOCOL}",
                hint="install the same version of crckpt on both hosts",
            ) from error
        except ValueError as error:
            raise frames.BadFrame(f"a message that cannot be decoded: {error}") from error

    def _read_into(self, memory: memoryview) -> None:
        """Fill `memory`. Raises ConnectionLost at the end of the connection, or after too long a silence."""
        while memory:
            if not self._wait(self._silence_s):
                raise ConnectionLost(
                    f"nothing was received from {self._peer} for {self._silence_s:g} s",
                    hint=f"check the network, and whether crckpt is stopped on {self._peer}",
                )
            try:
                count = os.readv(self._descriptor, [memory])
            except BlockingIOError:
                # sshd gives one socket for both directions, which the writer has made non-blocking.
                continue
            if not count:
                hint = f"check that crckpt and ssh run on {self._peer}"
                raise ConnectionEnded(f"the connection to {self._peer} has ended", hint=hint)
            memory = memory[count:]

    def _read_text(self, begun: bytes | memoryview) -> tuple[str, bool]:
        """Read the rest of a text; return it, and whether nothing follows: the other side has ended."""
        text, has_ended = bytearray(begun), False
        until = time.monotonic() + _TEXT_S
        with suppress(OSError):
            while len(text) < _MOST_TEXT and not has_ended and self._wait(until - time.monotonic()):
                some = os.read(self._descriptor, _MOST_TEXT - len(text))
                text += some
                has_ended = not some
        # The text, without the messages that may follow it.
        shown, *rest = _NO_TEXT.split(text, maxsplit=1)
        return shown.decode(errors="replace"), has_ended and not rest

    def _wait(self, seconds: float) -> bool:
        is_ready = self._end.wait(seconds, self._descriptor)
        if self._end.is_set():
            raise _Stopped
        return is_ready


class _Stopped(Exception):
    """Nothing is to be read any more."""
