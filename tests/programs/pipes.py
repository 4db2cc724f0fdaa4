"""Bytes that stay in pipes and socket pairs until WORKDIR/verify appears, and a pipe with steady traffic both ways."""

import fcntl
import os
import socket
import struct
import sys
from pathlib import Path
from typing import NoReturn

from selfcheck import Program, fork, pattern

SMALL, LARGE = pattern("small", 40_000), pattern("large", 200_000)
STREAM = pattern("stream", 30_000)
MESSAGES = [pattern(str(index), 10 + 700 * index) for index in range(5)]
PIPE_BYTES = 256 * 1024
KINDS = (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)


class InFlight:
    """Everything that is filled at the start and read by another process only on request."""

    def __init__(self, workdir: Path) -> None:
        """Open all pipes and fill them."""
        self.small, self.large = os.pipe(), os.pipe()
        fcntl.fcntl(self.large[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.mkfifo(workdir / "fifo")
        self.fifo = os.open(workdir / "fifo", os.O_RDWR)
        self.stream = socket.socketpair()
        self.shut = socket.socketpair()
        self.messages = [socket.socketpair(socket.AF_UNIX, kind) for kind in KINDS]
        self._fill()

    def _fill(self) -> None:
        os.write(self.small[1], SMALL)
        os.write(self.large[1], LARGE)
        os.write(self.fifo, SMALL)
        self.stream[0].sendall(STREAM)
        self.shut[0].sendall(STREAM)
        self.shut[0].shutdown(socket.SHUT_WR)
        for sender, _ in self.messages:
            for message in MESSAGES:
                sender.send(message)

    def drain(self, program: Program) -> None:
        """Read everything and compare it with what was written."""
        program.expect(os.read(self.small[0], 1 << 20) == SMALL, "the pipe's bytes differ")
        program.expect(fcntl.fcntl(self.large[0], fcntl.F_GETPIPE_SZ) == PIPE_BYTES, "the pipe's size differs")
        program.expect(os.read(self.large[0], 1 << 20) == LARGE, "the large pipe's bytes differ")
        program.expect(os.read(self.fifo, 1 << 20) == SMALL, "the fifo's bytes differ")
        program.expect(_read(self.stream[1], len(STREAM)) == STREAM, "the stream's bytes differ")
        program.expect(_read(self.shut[1], 1 << 20) == STREAM, "the closed stream's bytes differ")
        for _, receiver in self.messages:
            found = [receiver.recv(1 << 16) for _ in MESSAGES]
            program.expect(found == MESSAGES, f"messages of {[len(message) for message in found]} bytes")
        for pair in (self.stream, *self.messages):
            pair[1].send(b"back")
            program.expect(pair[0].recv(100) == b"back", "a pair is no longer a pair")


def main() -> None:
    """The root writes and asks, its child reads and answers."""
    workdir = Path(sys.argv[1])
    flight = InFlight(workdir)
    question, answer = os.pipe(), os.pipe()

    def reader() -> NoReturn:
        program = Program(workdir, "reader")
        os.close(question[1])

        def echo() -> None:
            os.write(answer[1], os.read(question[0], 8))

        def verify() -> bool:
            flight.drain(program)
            return True

        program.run(echo, verify)

    fork(reader)
    os.close(flight.small[0])
    program = Program(workdir, parts=("reader",))

    def ask() -> None:
        os.write(question[1], struct.pack("<Q", program.counter))
        (back,) = struct.unpack("<Q", os.read(answer[0], 8))
        program.expect(back == program.counter, f"asked {program.counter}, was answered {back}")

    program.run(ask)


def _read(stream: socket.socket, length: int) -> bytes:
    stream.settimeout(30)
    content = b""
    while len(content) < length and (more := stream.recv(1 << 16)):
        content += more
    return content


if __name__ == "__main__":
    main()
