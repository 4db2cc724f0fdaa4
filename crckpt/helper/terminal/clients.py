"""The clients of the holder of a terminal: one is attached, others only ask for a description."""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import socket
import termios
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from crckpt.helper.serve import Waiting
from crckpt.helper.terminal.protocol import (
    ATTACH,
    DESCRIBE,
    DESCRIPTION,
    ENDED,
    INPUT,
    LONGEST,
    OUTPUT,
    REFUSED,
    RESIZE,
    HeldTerminal,
    HeldTree,
    encode_status,
    is_size,
)
from crckpt.helper.terminal.screen_modes import ScreenModes
from crckpt.host.socket_options import peer_pid

_MOST_CLIENTS: Final = 16
# Output that the attached client has not taken yet: then the program waits, as on any terminal.
_MOST_UNSENT: Final = 256 << 10
_MOST_UNWRITTEN: Final = 64 << 10
# An attached client that takes nothing for so long is dropped: the program must not wait for a terminal that is gone.
_PATIENCE_S: Final = 20.0


class Client:
    """A connection, and the messages that it has not taken yet. `waits_since` is when it last took one, or 0."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.pid = peer_pid(connection)
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.waits_since = 0.0

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.connection.fileno()

    def send(self, message: bytes) -> bool:
        """Send a message, now or later. Return whether the peer is there."""
        self.unsent.append(message)
        self.unsent_bytes += len(message)
        return self.flush()

    def flush(self) -> bool:
        """Send what can be sent now. Return whether the peer is there."""
        while self.unsent:
            try:
                self.connection.send(self.unsent[0])
            except BlockingIOError:
                self.waits_since = self.waits_since or time.monotonic()
                return True
            except OSError:
                return False
            self.unsent_bytes -= len(self.unsent.popleft())
            self.waits_since = 0.0
        return True


class Clients:
    """All connections to the holder."""

    def __init__(self, master: int, waiting: Waiting, attend_master: Callable[[int], None]) -> None:
        """`attend_master` is called when the terminal has output, or takes input."""
        self.tree: HeldTree | None = None
        self._master = master
        self._waiting = waiting
        self._clients: list[Client] = []
        self._attached: Client | None = None
        self._input = bytearray()
        self._is_open = True
        self._modes = ScreenModes()
        self._attend_master = attend_master
        self._wait(master, selectors.EVENT_READ)

    def close_terminal(self) -> None:
        """Wait for no more output: the terminal has none."""
        self._is_open = False
        self._update()

    def add(self, connection: socket.socket) -> None:
        """Take a new connection, unless there are too many."""
        if len(self._clients) >= _MOST_CLIENTS:
            connection.close()
            return
        client = Client(connection)
        self._clients.append(client)
        self._wait(client, selectors.EVENT_READ)

    def attend(self, client: Client, events: int) -> None:
        """Read a message of this client, or send it more."""
        if client not in self._clients:
            return
        if events & selectors.EVENT_WRITE and not client.flush():
            self._drop(client)
            return
        if events & selectors.EVENT_READ:
            self._read(client)
        self._update()

    def send_output(self, output: bytes) -> None:
        """Send what the program has written to the attached client."""
        self._modes.read(output)
        client = self._attached
        if client is not None and not client.send(OUTPUT + output):
            self._drop(client)
        self._update()

    def write_input(self) -> None:
        """Write what was typed to the terminal, as far as it takes it."""
        with suppress(OSError):
            del self._input[: os.write(self._master, self._input)]
        self._update()

    def seconds_until_dropped(self) -> float | None:
        """Return in how many seconds the attached client will be dropped; None if nothing waits for it."""
        client = self._attached
        if client is None or not client.waits_since:
            return None
        return max(0.0, client.waits_since + _PATIENCE_S - time.monotonic())

    def drop_slow(self) -> None:
        """Drop the attached client if it has taken nothing for long."""
        if self._attached is not None and self.seconds_until_dropped() == 0.0:
            self._drop(self._attached)
            self._update()

    def end(self, status: int) -> None:
        """Send the attached client what is left and the program's exit status, then drop it."""
        client = self._attached
        if client is not None:
            client.connection.settimeout(_PATIENCE_S)
            client.send(ENDED + encode_status(status))
            self._drop(client)

    def close(self) -> None:
        """Close all connections."""
        for client in tuple(self._clients):
            self._drop(client)

    def _read(self, client: Client) -> None:
        try:
            data = client.connection.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        kind, content = data[:1], data[1:]
        if kind == DESCRIBE and not client.pid and content.isdigit():
            # The kernel does not tell the PID of a process outside our PID namespace.
            client.pid = int(content)
        if kind == DESCRIBE and self.tree is not None:
            attached = self._attached.pid if self._attached else 0
            is_there = client.send(DESCRIPTION + msgspec.json.encode(HeldTerminal(os.getpid(), self.tree, attached)))
        elif kind == ATTACH and is_size(content):
            is_there = self._attach(client, content)
        elif client is self._attached and kind == RESIZE and is_size(content):
            self._resize(content)
            is_there = True
        elif client is self._attached and kind == INPUT:
            self._input += content
            is_there = True
            self.write_input()
        else:
            is_there = bool(data) and client.send(REFUSED + b"it is of another version of crckpt")
        if not is_there:
            self._drop(client)

    def _attach(self, client: Client, size: bytes) -> bool:
        if self._attached is not None:
            attached = self._attached.pid
            why = f"PID {attached} is attached already: press the key that detaches there (^]), or: kill {attached}"
            return client.send(REFUSED + why.encode())
        self._attached = client
        if modes := self._modes.set_sequence():
            client.send(OUTPUT + modes)
        self._resize(size)
        # Programs that draw the whole screen draw it again, even if its size is as before.
        with suppress(OSError):
            if (group := os.tcgetpgrp(self._master)) > 1:
                os.killpg(group, signal.SIGWINCH)
        return True

    def _resize(self, size: bytes) -> None:
        with suppress(OSError):
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _drop(self, client: Client) -> None:
        self._clients.remove(client)
        self._wait(client, 0)
        client.connection.close()
        if client is self._attached:
            self._attached = None
            self._input.clear()

    def _update(self) -> None:
        """Wait for what can go on now: not for more output or input than has been taken."""
        for client in self._clients:
            may_read = client is not self._attached or len(self._input) < _MOST_UNWRITTEN
            wanted = (selectors.EVENT_READ if may_read else 0) | (selectors.EVENT_WRITE if client.unsent else 0)
            self._wait(client, wanted)
        is_full = self._attached is not None and self._attached.unsent_bytes > _MOST_UNSENT
        wanted = (0 if is_full else selectors.EVENT_READ) | (selectors.EVENT_WRITE if self._input else 0)
        self._wait(self._master, wanted if self._is_open else 0)

    def _wait(self, waited: Client | int, events: int) -> None:
        """Wait for these events; for none with 0."""
        if not events:
            self._waiting.forget(waited)
        elif isinstance(waited, Client):
            self._waiting.watch(waited, partial(self.attend, waited), events)
        else:
            self._waiting.watch(waited, self._attend_master, events)
