"""Sockets of keepers, on which a test answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from small_programs import WAIT_STATEMENTS, program, read

from crckpt.helper.channel import Channel, HelperEnded, listen
from crckpt.helper.kinds import KEEPER as KIND
from crckpt.helper.kinds import record_path
from crckpt.host import proc
from crckpt.tracking.keeper.protocol import Answer, Keeper, KeeperRequest

KEEPER = Keeper(1, 2, "program", "none", "", "criu", {})
_PATIENCE_S = 30.0


def keeper_socket(root: proc.Process) -> Path:
    """The socket of the keeper of this process."""
    return record_path(KIND, root.identity)


@contextmanager
def trackable() -> Iterator[proc.Process]:
    """A program that a keeper may track."""
    with program(WAIT_STATEMENTS) as process:
        found = read(process.pid)
        try:
            yield found
        finally:
            keeper_socket(found).unlink(missing_ok=True)


def leave_socket(root: proc.Process) -> None:
    """Leave the socket of this process's keeper, as if the keeper had been killed."""
    path = keeper_socket(root)
    with listening(root):
        path.rename(f"{path}.kept")
    path.with_name(f"{path.name}.kept").rename(path)


@contextmanager
def listening(root: proc.Process, *, backlog: int = 8) -> Iterator[socket.socket]:
    """The socket of the process's keeper."""
    path = keeper_socket(root)
    with listen(path) as listener:
        listener.listen(backlog)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def answering(listener: socket.socket, *answers: Answer | bytes) -> Iterator[list[KeeperRequest]]:
    """Accept one caller, and give each request the next answer, at the end nothing; what it asked."""
    asked: list[KeeperRequest] = []

    def answer() -> None:
        with suppress(OSError, HelperEnded):
            connection, _ = listener.accept()
            with closing(Channel(KIND, connection)) as channel:
                for each in answers:
                    asked.append(channel.receive(KeeperRequest, _PATIENCE_S))
                    if isinstance(each, bytes):
                        connection.send(each)
                    else:
                        channel.send(each)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield asked
    finally:
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()
