"""The clients of the holder of a terminal: one is attached, others only ask for a description."""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import socket
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from crckpt.helper.serve import Waiting
from crckpt.helper.terminal import protocol
from crckpt.helper.terminal.protocol import HeldTerminal, HeldTree
from crckpt.helper.terminal.screen_modes import ScreenModes
from crckpt.host.opened import peer_pid

_MOST_CLIENTS: Final = 16
# Output that the attached client has not taken yet: then the program waits, as on any terminal.
_MOST_UNSENT: Final = 256 << 10
_MOST_UNWRITTEN: Final = 64 << 10
# An attached client that takes nothing for so long is dropped: the program must not wait for a terminal that is gone.
_PATIENCE_S: Final = 20.0


class Clients:
    """All connections to the holder, each with the PID of its peer."""

    def __init__(self, master: int, waiting: Waiting, attend_master: Callable[[int], None]) -> None:
        """`attend_master` is called when the terminal has output, or takes input."""
        self.tree: HeldTree | None = None
        self._master = master
        self._waiting = waiting
        self._pids: dict[socket.socket, int] = {}
        self._attached: socket.socket | None = None
        # What was typed and the terminal has not taken; what was written and the attached client has not taken, and
        # since when it has taken nothing, or 0.
        self._input = bytearray()
        self._output = bytearray()
        self._waits_since = 0.0
        self._is_open = True
        self._modes = ScreenModes()
        self._attend_master = attend_master
        self._update()

    def close_terminal(self) -> None:
        """Wait for no more output: the terminal has none."""
        self._is_open = False
        self._update()

    def add(self, connection: socket.socket) -> None:
        """Take a new connection, unless there are too many."""
        if len(self._pids) >= _MOST_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        self._pids[connection] = peer_pid(connection)
        self._waiting.watch(connection, partial(self._attend, connection))

    def send_output(self, output: bytes) -> None:
        """Send what the program has written to the attached client."""
        self._modes.read(output)
        if self._attached is not None:
            self._output += output
            self._flush(self._attached)
        self._update()

    def write_input(self) -> None:
        """Write what was typed to the terminal, as far as it takes it."""
        with suppress(OSError):
            del self._input[: os.write(self._master, self._input)]
        self._update()

    def seconds_until_dropped(self) -> float | None:
        """Return in how many seconds the attached client will be dropped; None if nothing waits for it."""
        return max(0.0, self._waits_since + _PATIENCE_S - time.monotonic()) if self._waits_since else None

    def drop_slow(self) -> None:
        """Drop the attached client if it has taken nothing for long."""
        if self._attached is not None and self.seconds_until_dropped() == 0.0:
            self._drop(self._attached)
            self._update()

    def end(self, status: int) -> None:
        """Send the attached client what is left and the program's exit status, then drop it."""
        client = self._attached
        if client is not None:
            client.settimeout(_PATIENCE_S)
            self._flush(client)
            if client in self._pids:
                self._send(client, protocol.ENDED + protocol.encode_status(status))
            self._drop(client)

    def close(self) -> None:
        """Close all connections."""
        for client in tuple(self._pids):
            self._drop(client)

    def _attend(self, client: socket.socket, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(client)
        if events & selectors.EVENT_READ and client in self._pids:
            self._read(client)
        self._update()

    def _read(self, client: socket.socket) -> None:
        try:
            data = client.recv(protocol.LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        kind, content = data[:1], data[1:]
        if not data:
            self._drop(client)
        elif kind == protocol.DESCRIBE and self.tree is not None:
            # The kernel does not tell the PID of a process outside our PID namespace.
            if not self._pids[client] and content.isdigit():
                self._pids[client] = int(content)
            attached = self._pids[self._attached] if self._attached else 0
            terminal = HeldTerminal(os.getpid(), self.tree, attached)
            self._send(client, protocol.DESCRIPTION + msgspec.json.encode(terminal))
        elif kind == protocol.ATTACH and protocol.is_size(content):
            self._attach(client, content)
        elif client is self._attached and kind == protocol.RESIZE and protocol.is_size(content):
            self._resize(content)
        elif client is self._attached and kind == protocol.INPUT:
            self._input += content
            self.write_input()
        else:
            self._send(client, protocol.REFUSED + b"it is of another version of crckpt")

    def _attach(self, client: socket.socket, size: bytes) -> None:
        if self._attached is not None:
            attached = self._pids[self._attached]
            why = f"PID {attached} is attached already: press the key that detaches there (^]), or: kill {attached}"
            self._send(client, protocol.REFUSED + why.encode())
            return
        self._attached = client
        self._output += self._modes.set_sequence()
        self._flush(client)
        self._resize(size)
        # Programs that draw the whole screen draw it again, even if its size is as before.
        with suppress(OSError):
            if (group := os.tcgetpgrp(self._master)) > 1:
                os.killpg(group, signal.SIGWINCH)

    def _resize(self, size: bytes) -> None:
        with suppress(OSError):
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _send(self, client: socket.socket, message: bytes) -> None:
        """Send an answer; drop a client that has gone, or does not read its answers."""
        try:
            client.send(message)
        except OSError:
            self._drop(client)

    def _flush(self, client: socket.socket) -> None:
        """Send the attached client what it takes now of the output; drop one that has gone."""
        try:
            while self._output:
                part = self._output[: protocol.LONGEST - len(protocol.OUTPUT)]
                client.send(protocol.OUTPUT + part)
                del self._output[: len(part)]
                self._waits_since = 0.0
        except BlockingIOError:
            self._waits_since = self._waits_since or time.monotonic()
        except OSError:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        """Close a connection; nothing if it is closed."""
        if self._pids.pop(client, None) is None:
            return
        self._waiting.forget(client)
        client.close()
        if client is self._attached:
            self._attached = None
            self._input.clear()
            self._output.clear()
            self._waits_since = 0.0

    def _update(self) -> None:
        """Wait for what can go on now: not for more output or input than has been taken."""
        if (client := self._attached) is not None:
            takes_input = len(self._input) < _MOST_UNWRITTEN
            self._watch(client, partial(self._attend, client), read=takes_input, write=bool(self._output))
        takes_output = self._is_open and len(self._output) <= _MOST_UNSENT
        self._watch(self._master, self._attend_master, read=takes_output, write=self._is_open and bool(self._input))

    def _watch(self, file: socket.socket | int, ready: Callable[[int], None], *, read: bool, write: bool) -> None:
        if events := (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0):
            self._waiting.watch(file, ready, events)
        else:
            self._waiting.forget(file)
