"""Established TCP on loopback, client and server in two processes: one connection talks, one holds bytes in flight."""

import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from selfcheck import Program, fork, pattern

FLOOD = pattern("flood", 4 << 20)


def main() -> None:
    """The root is the server; its child connects twice."""
    workdir = Path(sys.argv[1])
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    fork(lambda: client(workdir, port))
    talking, _ = listener.accept()
    holding, _ = listener.accept()
    listener.close()
    talking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    talking.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    talking.setblocking(False)
    sent = _fill(holding)
    program = Program(workdir, parts=("client",))

    def echo() -> None:
        with suppress(BlockingIOError):
            talking.sendall(talking.recv(1 << 12))
        program.facts["sent"] = sent
        program.facts["ends"] = [talking.getsockname(), talking.getpeername()]
        nodelay = talking.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        program.facts["options"] = [nodelay, talking.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]

    def verify() -> bool:
        holding.shutdown(socket.SHUT_WR)
        (workdir / "sent").write_text(str(sent))
        return True

    program.run(echo, verify)


def client(workdir: Path, port: int) -> NoReturn:
    """Number what is sent and check the numbers that come back; read the other connection only on request."""
    talking = socket.create_connection(("127.0.0.1", port))
    holding = socket.create_connection(("127.0.0.1", port))
    talking.setblocking(False)
    program = Program(workdir, "client")
    received = b""
    answered = 0
    flood = b""

    def step() -> None:
        nonlocal received, answered
        talking.sendall(struct.pack("<Q", program.counter))
        with suppress(BlockingIOError):
            received += talking.recv(1 << 12)
        while len(received) >= 8:
            (number,) = struct.unpack("<Q", received[:8])
            received = received[8:]
            answered += 1
            program.expect(number == answered, f"answer {number} came where {answered} was due")
        program.expect(program.counter - answered < 200, "answers stay away")

    def verify() -> bool:
        nonlocal flood
        if not (workdir / "sent").exists():
            return False
        holding.settimeout(30)
        while more := holding.recv(1 << 20):
            flood += more
        sent = int((workdir / "sent").read_text())
        program.expect(len(flood) == sent, f"{sent} bytes were sent, {len(flood)} came")
        program.expect(flood == FLOOD[:sent], "the bytes in flight differ")
        return True

    program.run(step, verify)


def _fill(sender: socket.socket) -> int:
    """Send until both buffers are full; return the bytes sent."""
    sender.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while sent < len(FLOOD):
            sent += sender.send(FLOOD[sent : sent + (1 << 16)])
    return sent


if __name__ == "__main__":
    main()
