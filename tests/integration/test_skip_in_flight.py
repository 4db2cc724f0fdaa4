"""A connection that waits to be accepted prevents a dump, unless --skip-in-flight is given."""

import socket
from collections.abc import Iterator
from typing import Final

import pytest
from command import Crckpt
from remote import Remote, remote
from stopped_trees import JOB

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

REFUSED: Final = 24
WITHIN_S: Final = 60
_ACCEPT_STATEMENTS: Final = "link, _ = listener.accept(); answer = link.recv(100); link.sendall(b'heard')"


@pytest.fixture
def server() -> Iterator[Remote]:
    """A program that listens and accepts only on request."""
    with remote() as program:
        program.ask("import socket; listener = socket.create_server(('127.0.0.1', 0))")
        yield program


@pytest.fixture
def client(server: Remote) -> Iterator[socket.socket]:
    """A client whose connection is not yet accepted."""
    with _connected(server) as client:
        yield client


def test_dump_refused_for_a_waiting_client_names_the_option_to_skip_it(
    crckpt: Crckpt, server: Remote, client: socket.socket
) -> None:
    result = crckpt.run("dump", str(server.pid), JOB, status=REFUSED)
    assert "the program has not yet accepted a TCP connection" in result.err
    assert "--skip-in-flight" in result.err
    assert client.send(b"hello") == 5


@pytest.mark.parametrize("tcp", [(), ("--tcp", "keep"), ("--tcp", "close")], ids=["", "keep", "close"])
def test_client_that_waited_is_reset_by_a_dump_with_stop_and_later_ones_are_served(
    crckpt: Crckpt, server: Remote, client: socket.socket, tcp: tuple[str, ...]
) -> None:
    result = crckpt.run("dump", str(server.pid), JOB, "--stop", "--skip-in-flight", *tcp)
    assert "its peer sees a reset" in result.out
    server.wait_gone()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    crckpt.run("restore", JOB, "--detach")
    _served(server)


def test_dump_without_stop_keeps_the_client_that_waits_to_be_accepted(
    crckpt: Crckpt, server: Remote, client: socket.socket
) -> None:
    """Only the checkpoint is without the connection."""
    assert client.send(b"hello") == 5
    crckpt.run("dump", str(server.pid), JOB, "--skip-in-flight")
    assert server.ask(_ACCEPT_STATEMENTS) == b"hello"
    assert client.recv(100) == b"heard"


def test_pre_copy_round_accepts_pending_connections(crckpt: Crckpt, server: Remote, client: socket.socket) -> None:
    """A round does not save connections."""
    crckpt.run("pre-dump", str(server.pid), JOB)
    assert client.send(b"hello") == 5


def _served(server: Remote) -> None:
    with _connected(server) as another:
        another.sendall(b"another")
        assert server.ask(_ACCEPT_STATEMENTS) == b"another"
        assert another.recv(100) == b"heard"


def _connected(server: Remote) -> socket.socket:
    port = server.ask("answer = listener.getsockname()[1]")
    assert isinstance(port, int)
    return socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
