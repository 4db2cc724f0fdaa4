"""Clients of the holder of a terminal."""

from __future__ import annotations

import os
import select
import selectors
import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from crckpt.helper.serve import Waiting
from crckpt.helper.terminal import clients as module
from crckpt.helper.terminal.clients import Clients
from crckpt.helper.terminal.protocol import (
    ATTACH,
    DESCRIBE,
    DESCRIPTION,
    ENDED,
    INPUT,
    OUTPUT,
    REFUSED,
    RESIZE,
    HeldTerminal,
    HeldTree,
    decode_status,
    encode_size,
)

TREE = HeldTree(1234, 1, 1234, "python3", "job", "ab" * 32, "/var/log/crckpt/job.log")


class RecordingWait(Waiting):
    """Notes whether a wait was more than for the terminal's echo, which stays unread: it is ready all the time."""

    is_served = False

    def watch(self, file: Any, ready: Callable[[int], object], events: int = selectors.EVENT_READ) -> None:
        def attend(found: int) -> None:
            self.is_served |= isinstance(file, socket.socket) or bool(found & selectors.EVENT_WRITE)
            ready(found)

        super().watch(file, attend, events)


class TerminalWithClients:
    """A terminal, and the clients of its holder."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        self.waiting = RecordingWait()
        self.clients = Clients(self.master, self.waiting, self._write_input)
        self.clients.tree = TREE
        self.ours: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """Return the client's end of a new connection."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.clients.add(theirs)
        ours.settimeout(30)
        self.ours.append(ours)
        return ours

    def attach(self) -> socket.socket:
        """Return the end of a connection that is attached."""
        connection = self.connect()
        connection.send(ATTACH + encode_size(30, 100))
        self.serve()
        return connection

    def serve(self) -> None:
        """Process all messages that clients have sent."""
        self.waiting.is_served = True
        while self.waiting.is_served:
            self.waiting.is_served = False
            self.waiting.wait(0)

    def _write_input(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self.clients.write_input()


@pytest.fixture
def held() -> Iterator[TerminalWithClients]:
    held = TerminalWithClients()
    yield held
    held.clients.close()
    for connection in held.ours:
        connection.close()
    held.waiting.close()
    os.close(held.master)
    os.close(held.slave)


def test_holder_of_a_terminal_answers_with_a_description_of_its_tree(held: TerminalWithClients) -> None:
    asking, attached = held.connect(), held.attach()
    asking.send(DESCRIBE)
    held.serve()
    data = asking.recv(4096)
    assert data[:1] == DESCRIPTION
    assert msgspec.json.decode(data[1:], type=HeldTerminal) == HeldTerminal(os.getpid(), TREE, attached=os.getpid())
    attached.close()


def test_holder_passes_input_output_and_size_on_to_the_terminal(held: TerminalWithClients) -> None:
    client = held.attach()
    assert os.get_terminal_size(held.slave) == (100, 30)
    client.send(RESIZE + encode_size(20, 90))
    client.send(INPUT + b"typed\n")
    held.serve()
    assert os.get_terminal_size(held.slave) == (90, 20)
    # The master may not be writable at once.
    while not select.select([held.slave], [], [], 0.01)[0]:
        held.serve()
    assert os.read(held.slave, 100) == b"typed\n"
    held.clients.send_output(b"shown")
    assert client.recv(4096) == OUTPUT + b"shown"
    held.clients.end(7)
    data = client.recv(4096)
    assert (data[:1], decode_status(data[1:])) == (ENDED, 7)


def test_holder_continues_after_the_terminal_echoes_typed_input(held: TerminalWithClients) -> None:
    client = held.attach()
    client.send(INPUT + b"typed\n")
    while not select.select([held.master], [], [], 0.01)[0]:
        held.serve()
    held.serve()


def test_holder_refuses_a_second_client_until_the_first_has_gone(held: TerminalWithClients) -> None:
    first, second = held.attach(), held.attach()
    assert second.recv(4096).startswith(REFUSED + f"PID {os.getpid()} is attached already: ".encode())
    first.close()
    held.serve()
    third = held.attach()
    held.clients.send_output(b"shown")
    assert third.recv(4096) == OUTPUT + b"shown"


@pytest.mark.parametrize("message", [b"?", INPUT + b"not attached", RESIZE + b"short", ATTACH, ATTACH + b"\xff" * 9])
def test_holder_refuses_an_invalid_message_and_changes_nothing(held: TerminalWithClients, message: bytes) -> None:
    before = os.get_terminal_size(held.slave)
    client = held.connect()
    client.send(message)
    held.serve()
    assert client.recv(4096)[:1] == REFUSED
    assert os.get_terminal_size(held.slave) == before
    assert not held.waiting.wait(0)


def test_holder_drops_a_client_that_reads_nothing(held: TerminalWithClients, monkeypatch: pytest.MonkeyPatch) -> None:
    client = held.attach()
    while not held.clients.seconds_until_dropped():
        held.clients.send_output(b"x" * 4096)
    held.clients.drop_slow()
    assert held.clients.seconds_until_dropped() is not None
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    held.clients.drop_slow()
    assert held.clients.seconds_until_dropped() is None
    client.close()


def test_client_that_attaches_gets_the_modes_of_the_screen(held: TerminalWithClients) -> None:
    held.clients.send_output(b"\x1b[?1049h")
    assert held.attach().recv(4096) == OUTPUT + b"\x1b[?1049h"


def test_number_of_clients_of_a_holder_is_limited(held: TerminalWithClients) -> None:
    connections = [held.connect() for _ in range(17)]
    assert connections[-1].recv(1) == b""
