"""Clients of numbered_server.py that connect again and again: each connection makes a few requests.

When its stdin ends, it says how many connections were served, and the errors of the others, as JSON.
"""

import json
import socket
import sys
import threading
from typing import Final

CLIENTS: Final = 4
REQUESTS: Final = 3
WITHIN_S: Final = 60


def main() -> None:
    """Connect until stdin ends."""
    served: list[int] = []
    errors: list[str] = []
    is_over = threading.Event()

    def talk() -> None:
        while not is_over.is_set():
            try:
                with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=WITHIN_S) as connection:
                    served.append(sum(ask(connection, number) for number in range(REQUESTS)))
            except OSError as error:
                errors.append(repr(error))

    threads = [threading.Thread(target=talk) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    is_over.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"served": served.count(REQUESTS), "errors": sorted(set(errors))}), flush=True)


def ask(connection: socket.socket, number: int) -> bool:
    """Make a request; return whether its answer came."""
    connection.sendall(f"{number}\n".encode())
    answer = b""
    while not answer.endswith(b"\n"):
        content = connection.recv(1 << 12)
        if not content:
            raise ConnectionError("the connection ended")
        answer += content
    return answer.startswith(f"{number} ".encode())


if __name__ == "__main__":
    main()
