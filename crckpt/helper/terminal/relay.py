"""Find the terminals of restored trees, and connect our terminal to one."""

from __future__ import annotations

import os
import signal
import socket
import termios
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import HostCannot
from crckpt.helper.channel import Channel, HelperSilent, connect, find_helpers
from crckpt.helper.kinds import TERMINAL, HelperRecord
from crckpt.helper.terminal import protocol
from crckpt.helper.terminal.protocol import HeldTerminal
from crckpt.helper.terminal.screen_modes import ScreenModes
from crckpt.host.opened import peer_pid
from crckpt.host.process.signals import Wakeups, woken_by_signals

_ANSWERS_S: Final = 5.0
_AT_ONCE: Final = 16 << 10
_MOST_UNSENT: Final = 64


class FoundTerminal(Struct, frozen=True):
    """A terminal, and the socket of its holder."""

    terminal: HeldTerminal
    path: Path


def find_terminals() -> Iterator[FoundTerminal | HelperRecord]:
    """Find the terminals of all restored trees. A record is of a holder that was killed, and whose tree lives."""
    # One that is stopped does not answer.
    for record, channel in find_helpers(TERMINAL, _ANSWERS_S):
        if isinstance(channel, Channel):
            with closing(channel):
                terminal = _describe(channel.connection)
            if terminal is not None:
                yield FoundTerminal(terminal, record.path)
        elif channel is None:
            yield record


def attach(found: FoundTerminal, ours: int, key: int | None) -> int | None:
    """Connect the terminal `ours` to the one that was found, until the byte `key` is typed or the tree ends.

    Return the tree's exit status, or None if the user has detached. Raises HostCannot if that is refused, or the holder
    has ended.
    """
    connection = _connect(found.path)
    if connection is None:
        raise HostCannot("the terminal has gone, or does not answer", hint="see which there are: crckpt attach --list")
    with connection, woken_by_signals() as wakeups, _raw(ours):
        relay = _Relay(connection, ours, key, wakeups)
        try:
            with relay.resizes_noted():
                return relay.run()
        except _ClosedError:
            tree = found.terminal.tree
            if (again := _connect(found.path)) is None:
                lost = f"the process that holds the terminal has ended; {tree.job} lost its terminal"
                raise HostCannot(
                    f"{lost}, which ends most programs",
                    hint=f"what it wrote is in {tree.log}; once it has ended: crckpt restore {tree.job} --tty new",
                ) from None
            again.close()
            hint = f"attach again: crckpt attach {tree.root}; what it wrote is in {tree.log}"
            why = "crckpt was detached, because this terminal took no output for long"
            raise HostCannot(why, hint=hint) from None
        except OSError:
            # Our terminal has gone.
            return None
        finally:
            with suppress(OSError):
                os.write(ours, relay.modes.reset_sequence())


class _ClosedError(Exception):
    """The holder has closed the connection."""


class _Relay:
    """Passes on what is typed, and what the program writes."""

    def __init__(self, connection: socket.socket, ours: int, key: int | None, wakeups: Wakeups) -> None:
        self._connection = connection
        self._ours = ours
        self._key = key
        self._wakeups = wakeups
        self._is_resized = False
        self._unsent: deque[bytes] = deque()
        self.modes = ScreenModes()

    @contextmanager
    def resizes_noted(self) -> Iterator[None]:
        """Note each change of our terminal's size during the block."""

        def note(_number: int, _frame: FrameType | None) -> None:
            self._is_resized = True

        before = signal.signal(signal.SIGWINCH, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)

    def run(self) -> int | None:
        """Run until the tree ends, or the user detaches."""
        self._connection.setblocking(False)
        connection = self._connection.fileno()
        self._unsent += (_ask_description(), protocol.ATTACH + self._size())
        while True:
            writing = [connection] if self._unsent else []
            ready = self._wakeups.wait(connection, self._ours, writable=writing)
            if connection in ready and (status := self._take_message()) is not None:
                return status
            if self._is_resized:
                self._is_resized = False
                self._unsent.append(protocol.RESIZE + self._size())
            if self._ours in ready and not self._take_typed():
                return None
            self._send()

    def _take_typed(self) -> bool:
        """Pass on what was typed. Return whether to go on."""
        typed = os.read(self._ours, _AT_ONCE)
        before, found, _ = typed.partition(bytes((self._key,))) if self._key is not None else (typed, b"", b"")
        # A program that reads nothing: what is typed is lost, as on any terminal; but detaching works.
        if before and len(self._unsent) < _MOST_UNSENT:
            self._unsent.append(protocol.INPUT + before)
        if found or not typed:
            self._send()
        return bool(typed) and not found

    def _take_message(self) -> int | None:
        """Take a message of the holder. Return the exit status once the tree has ended."""
        try:
            data = self._connection.recv(protocol.LONGEST)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        kind, content = data[:1], data[1:]
        if kind == protocol.ENDED:
            return protocol.decode_status(content)
        if kind == protocol.OUTPUT:
            self.modes.read(content)
            while content:
                content = content[os.write(self._ours, content) :]
        elif kind == protocol.REFUSED:
            raise HostCannot(content.decode(errors="replace"))
        elif not data:
            raise _ClosedError
        return None

    def _send(self) -> None:
        # That the holder has gone is found when its next message is read.
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._unsent:
                self._connection.send(self._unsent[0])
                self._unsent.popleft()

    def _size(self) -> bytes:
        size = os.get_terminal_size(self._ours)
        return protocol.encode_size(size.lines, size.columns)


def _connect(path: Path) -> socket.socket | None:
    """Connect to the holder at this socket; None if it has ended, does not answer, or is not ours."""
    with suppress(HelperSilent):
        channel = connect(TERMINAL, path, _ANSWERS_S)
        return channel.connection if channel is not None else None
    return None


def _describe(connection: socket.socket) -> HeldTerminal | None:
    connection.settimeout(_ANSWERS_S)
    with suppress(OSError, msgspec.DecodeError):
        connection.send(_ask_description())
        data = connection.recv(protocol.LONGEST)
        if data[:1] == protocol.DESCRIPTION:
            # A holder in a PID namespace does not know its PID here.
            return replace(msgspec.json.decode(data[1:], type=HeldTerminal), holder=peer_pid(connection))
    return None


def _ask_description() -> bytes:
    return protocol.DESCRIBE + str(os.getpid()).encode()


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Let the keys of this terminal arrive one by one, and mean nothing to it, during the block."""
    before = termios.tcgetattr(terminal)
    try:
        tty.setraw(terminal, termios.TCSADRAIN)
        yield
    finally:
        with suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
