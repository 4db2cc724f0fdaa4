"""Named unix sockets: a stream listener for any client, a connection with unread bytes, and datagrams."""

import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from selfcheck import Program, fork, pattern

STREAM = pattern("stream", 20_000)
LETTERS = [pattern(str(index), 100 * (index + 1)) for index in range(6)]


class Server:
    """The listener and the datagram socket; `held` is a connection that is not read until requested."""

    def __init__(self, workdir: Path) -> None:
        """Bind both names in `workdir`, and one in the abstract namespace."""
        self.workdir = workdir
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(workdir / "stream.sock"))
        self.listener.listen(8)
        self.letters = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.letters.bind(str(workdir / "dgram.sock"))
        self.abstract = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.abstract.bind(f"\0crckpt-{os.getpid()}")
        # CRIU must find a listener that comes after its client.
        self.waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        client, listener = self.waiting
        listener.bind(f"\0crckpt-waiting-{os.getpid()}")
        listener.listen(1)
        client.connect(listener.getsockname())
        self.held: socket.socket | None = None

    def accept_held(self) -> None:
        """Wait for the client's connection and letters."""
        self.held, _ = self.listener.accept()
        self.listener.setblocking(False)

    def greet(self, counter: int) -> None:
        """Answer all clients, then hang up."""
        while True:
            try:
                guest, _ = self.listener.accept()
            except BlockingIOError:
                return
            with guest:
                guest.sendall(f"hello {counter}\n".encode())

    def verify(self, program: Program) -> bool:
        """Read the bytes in flight; both sockets still have their names."""
        assert self.held is not None
        found = b""
        while len(found) < len(STREAM):
            found += self.held.recv(1 << 16)
        program.expect(found == STREAM, "the stream's bytes differ")
        letters = [self.letters.recv(1 << 12) for _ in LETTERS]
        program.expect(letters == LETTERS, f"letters of {[len(letter) for letter in letters]} bytes")
        self.abstract.sendto(b"to myself", self.abstract.getsockname())
        program.expect(self.abstract.recv(100) == b"to myself", "the abstract name is lost")
        self.held.sendall(b"goes on")
        client, listener = self.waiting
        client.send(b"waited")
        with listener.accept()[0] as accepted:
            program.expect(accepted.recv(100) == b"waited", "the connection that waited is another one")
        return True


def main() -> None:
    """The root serves; its child is the client."""
    workdir = Path(sys.argv[1])
    server = Server(workdir)
    fork(lambda: client(workdir))
    server.accept_held()
    program = Program(workdir, parts=("client",))
    program.run(lambda: server.greet(program.counter), lambda: server.verify(program))


def client(workdir: Path) -> NoReturn:
    """Send, and wait until the server reads the connection, after everything was verified."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(str(workdir / "stream.sock"))
    stream.sendall(STREAM)
    stream.setblocking(False)
    letters = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    letters.connect(str(workdir / "dgram.sock"))
    for letter in LETTERS:
        letters.send(letter)
    program = Program(workdir, "client")
    answers: list[bytes] = []

    def step() -> None:
        try:
            answers.append(stream.recv(100))
        except BlockingIOError:
            return

    def verify() -> bool:
        program.expect(not answers or answers[0] == b"goes on", f"the server said {answers}")
        return bool(answers)

    program.run(step, verify)


if __name__ == "__main__":
    main()
