"""What a keeper does with callers who say what nobody understands, too much, or nothing."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import msgspec
import pytest
from other_user import as_user
from smaller_bounds import smaller_bounds

from crckpt.host.peers import is_trusted, peer_pid
from crckpt.tracking.keeper import server
from crckpt.tracking.keeper.protocol import Answer, Keeper, KeeperRequest
from crckpt.tracking.keeper.server import _MOST_CALLERS, _Caller, _Service
from crckpt.tracking.tracker import Tracker

TOLD = Keeper(1, 2, "program", "none", "", "criu", {})
PATIENCE_S = 30.0


class Followed:
    """Of a tracker, what a keeper tells of it."""

    base = None
    why_full = "nothing"


@contextmanager
def served(path: Path) -> Iterator[Path]:
    """A keeper's socket, answered until the block ends."""
    reading, writing = os.pipe()
    ended, ending = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with socket.socket(socket.AF_UNIX) as listener, ours, ExitStack() as stack:
        for descriptor in (reading, writing, ended, ending):
            stack.callback(os.close, descriptor)
        listener.bind(str(path))
        listener.listen()

        def make_caller(connection: socket.socket) -> _Caller:
            # In a keeper's own process they end with it.
            caller = _Caller(connection)
            stack.callback(caller.close)
            return caller

        service = _Service(cast(Tracker, Followed()), TOLD, make_caller)
        first = _Caller(theirs)
        thread = threading.Thread(target=service.serve, args=(reading, ended, listener, first), daemon=True)
        thread.start()
        try:
            yield path
        finally:
            os.write(ending, b"x")
            thread.join(PATIENCE_S)
            first.close()
            assert not thread.is_alive()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with served(tmp_path / "socket") as path:
        yield path


def called(path: Path) -> socket.socket:
    # With a timeout, a queue that is full would be an error at once.
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    connection.settimeout(PATIENCE_S)
    return connection


def heard(connection: socket.socket) -> bytes:
    """A line, or nothing if the keeper has hung up."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            more = connection.recv(4096)
        except ConnectionResetError:
            return b""
        if not more:
            return b""
        line += more
    return line


def is_hung_up_on(connection: socket.socket, text: bytes) -> bool:
    """Return whether it is, once it has said that often."""
    try:
        for _ in range(100_000):
            connection.sendall(text)
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


def answers(path: Path) -> bool:
    with called(path) as connection:
        connection.sendall(msgspec.json.encode(KeeperRequest("tell")) + b"\n")
        told = msgspec.json.decode(heard(connection), type=Answer).keeper
        return told is not None and told.comm == "program"


@pytest.mark.parametrize(
    "line",
    [b"hello\n", b"\n", b"\xff\xfe\0\n", b'{"do": "sleep"}\n', b"[" * 60_000 + b"\n", b"null\n", b'{"do":"stage"}}\n'],
)
def test_who_is_not_understood_is_told_so(place: Path, line: bytes) -> None:
    with called(place) as connection:
        connection.sendall(line)
        assert "unknown request" in msgspec.json.decode(heard(connection), type=Answer).refused
        connection.sendall(msgspec.json.encode(KeeperRequest("tell")) + b"\n")
        assert msgspec.json.decode(heard(connection), type=Answer).keeper is not None
    assert answers(place)


def test_half_a_line_keeps_nobody_waiting(place: Path) -> None:
    with called(place) as half, called(place):
        half.sendall(b'{"do":')
        assert answers(place)
        half.sendall(b'"tell"}\n{"do":"te')
        assert msgspec.json.decode(heard(half), type=Answer).keeper is not None
        half.sendall(b'll"}\n')
        assert msgspec.json.decode(heard(half), type=Answer).keeper is not None
    assert answers(place)


def test_a_line_without_end_is_hung_up_on(place: Path) -> None:
    with called(place) as endless:
        assert is_hung_up_on(endless, b"a" * 4096)
        assert not heard(endless)
    assert answers(place)


def test_who_reads_no_answers_keeps_nobody_waiting_for_long(place: Path) -> None:
    with smaller_bounds(server, _PATIENCE_S=0.2), called(place) as deaf:
        assert is_hung_up_on(deaf, b'{"do":"tell"}\n' * 100)
        assert answers(place)


def test_many_who_say_nothing_lock_nobody_out(place: Path) -> None:
    with ExitStack() as stack:
        for _ in range(3 * _MOST_CALLERS):
            stack.enter_context(called(place))
        assert answers(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_other_users_are_not_answered(place: Path) -> None:
    place.chmod(0o777)
    # Where it lies only root can go; who is there already can call it.
    directory = os.open(place.parent, os.O_PATH)
    place.parent.chmod(0o711)

    def check() -> None:
        os.chdir(directory)
        with called(Path(place.name)) as connection:
            assert not heard(connection)

    as_user(check)
    os.close(directory)
    assert answers(place)


def test_who_is_at_the_other_end_is_what_the_kernel_says() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert is_trusted(ours)
        assert peer_pid(ours) == os.getpid()
