"""A TCP server on loopback that sends back what its one client sends; its port is written to WORKDIR/port."""

import socket
import sys
from contextlib import suppress
from pathlib import Path

from selfcheck import Program


def main() -> None:
    """Listen, accept once, and echo at each tick."""
    workdir = Path(sys.argv[1])
    program = Program(workdir)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    (workdir / "port").write_text(str(listener.getsockname()[1]))
    clients: list[socket.socket] = []
    received = 0

    def step() -> None:
        nonlocal received
        with suppress(BlockingIOError):
            clients.append(listener.accept()[0])
            clients[-1].settimeout(30)
        for client in clients:
            with suppress(BlockingIOError):
                content = client.recv(1 << 16, socket.MSG_DONTWAIT)
                received += len(content)
                client.sendall(content)
        program.facts["received"] = received

    program.run(step)


if __name__ == "__main__":
    main()
