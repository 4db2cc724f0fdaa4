"""Listening TCP sockets, IPv4 and IPv6, that greet each client. The ports are written to WORKDIR/ports."""

import socket
import sys
from contextlib import suppress
from pathlib import Path

from selfcheck import Program

HOSTS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


def main() -> None:
    """Listen and greet."""
    workdir = Path(sys.argv[1])
    hosts = (*HOSTS, *((socket.AF_INET, host) for host in sys.argv[2:]))
    listeners = [socket.create_server((host, 0), family=family, backlog=5) for family, host in hosts]
    for listener in listeners:
        listener.setblocking(False)
    ports = [listener.getsockname()[1] for listener in listeners]
    (workdir / "ports").write_text("\n".join(map(str, ports)))
    program = Program(workdir)

    def step() -> None:
        program.facts["ports"] = [listener.getsockname()[1] for listener in listeners]
        for listener in listeners:
            with suppress(BlockingIOError):
                guest, _ = listener.accept()
                with guest:
                    guest.setblocking(True)
                    guest.sendall(f"hello {program.counter}\n".encode())

    program.run(step)


if __name__ == "__main__":
    main()
