"""Sockets of keepers, on which a test answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from small_programs import WAITS, program, read

from crckpt.host import proc
from crckpt.host.disk.runtime_directory import make_runtime_directory
from crckpt.tracking.keeper.protocol import Keeper
from crckpt.tracking.keeper.sockets import keeper_socket

KEEPER = Keeper(1, 2, "program", "none", "", "criu", {})
_PATIENCE_S = 30.0


@contextmanager
def trackable() -> Iterator[proc.Process]:
    """A program that a keeper may track."""
    with program(WAITS) as process:
        found = read(process.pid)
        try:
            yield found
        finally:
            keeper_socket(found).unlink(missing_ok=True)


def leave_socket(root: proc.Process) -> None:
    """Leave the socket of a keeper of this process that was killed."""
    path = keeper_socket(root)
    with listening(root):
        path.rename(f"{path}.kept")
    path.with_name(f"{path.name}.kept").rename(path)


@contextmanager
def listening(root: proc.Process, *, backlog: int = 8) -> Iterator[socket.socket]:
    """The socket of the process's keeper."""
    path = keeper_socket(root)
    make_runtime_directory(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(backlog)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def answering(listener: socket.socket, *lines: bytes) -> Iterator[list[bytes]]:
    """Accept one caller, and give each request the next line, at the end nothing; what it asked."""
    asked: list[bytes] = []

    def answer() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as requests:
                for line in lines:
                    asked.append(requests.readline())
                    connection.sendall(line)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield asked
    finally:
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()
