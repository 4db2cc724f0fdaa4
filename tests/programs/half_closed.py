"""Connections of which one side, or both, has ended its data; and whether all data has come in the end.

`half_closed.py serve ADDRESS PORT` sends CONTENT on each connection. The client's first byte says when it ends its
data: at once (`f`), when the client has ended its own (`l`), or after that when a connection says `e` (`w`). With `c`
it closes the connection at once.

`half_closed.py ask ADDRESS PORT` makes a connection of each of KINDS, and says `ready` when all have the server's state
of that name. After a line on its stdin it sends and reads the rest, and says of each kind what it got.

`half_closed.py wait ADDRESS PORT FILE` makes a connection that the server closes, and says `ready`. A second after
there is a FILE, it reads, and says what it got.
"""

import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

CONTENT: Final = bytes(range(256)) * 512
MORE: Final = b"more"
WITHIN_S: Final = 30
SETTLES_S: Final = 0.5
LOOK_S: Final = 0.02
LATE_S: Final = 1
# The first byte, whether the client ends its own data at once, and whether it reads at once.
KINDS: Final = {
    "fin-wait-1": (b"f", False, False),
    "fin-wait-2": (b"f", False, True),
    "closing": (b"f", True, False),
    "close-wait": (b"w", True, False),
    "last-ack": (b"l", True, False),
}


def serve(address: str, port: int) -> None:
    """Serve for ever."""
    listener = socket.create_server((address, port), family=find_family(address))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(CONTENT))
    is_over = threading.Event()
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0], is_over), daemon=True).start()


def answer(connection: socket.socket, is_over: threading.Event) -> None:
    """Serve a connection, which stays open."""
    kind = connection.recv(1)
    if kind == b"e":
        is_over.set()
        return
    connection.sendall(CONTENT)
    if kind == b"c":
        connection.close()
        return
    if kind == b"f":
        connection.shutdown(socket.SHUT_WR)
    while connection.recv(1 << 16):
        pass
    if kind != b"l":
        is_over.wait()
    if kind != b"f":
        connection.shutdown(socket.SHUT_WR)
    threading.Event().wait()


def ask(address: str, port: int) -> None:
    """Make the connections, wait for a line, and report."""
    connections = {kind: connect(address, port) for kind in KINDS}
    got = dict.fromkeys(KINDS, b"")
    for kind, (first, _, reads) in KINDS.items():
        connections[kind].sendall(first)
        while reads and len(got[kind]) < len(CONTENT):
            got[kind] += connections[kind].recv(1 << 16)
    time.sleep(SETTLES_S)
    for kind, (_, ends, _) in KINDS.items():
        if ends:
            connections[kind].shutdown(socket.SHUT_WR)
    time.sleep(SETTLES_S)
    print("ready", flush=True)
    sys.stdin.readline()
    connect(address, port).sendall(b"e")
    for kind, (_, ends, _) in KINDS.items():
        print(f"{kind}: {finish(connections[kind], got[kind], ends=ends)}", flush=True)


def wait(address: str, port: int) -> None:
    """Let the server close a connection, and read late."""
    connection = connect(address, port)
    connection.sendall(b"c")
    time.sleep(SETTLES_S)
    print("ready", flush=True)
    while not Path(sys.argv[4]).exists():
        time.sleep(LOOK_S)
    time.sleep(LATE_S)
    print(finish(connection, b"", ends=True), flush=True)


def finish(connection: socket.socket, got: bytes, *, ends: bool) -> str:
    """Send and read the rest; return what was got."""
    try:
        if not ends:
            connection.sendall(MORE)
            connection.shutdown(socket.SHUT_WR)
        while content := connection.recv(1 << 16):
            got += content
    except OSError as error:
        return f"{type(error).__name__} after {len(got)} bytes"
    return "all" if got == CONTENT else f"{len(got)} bytes"


def connect(address: str, port: int) -> socket.socket:
    """Connect, with a small buffer: the server keeps most of its content."""
    connection = socket.socket(find_family(address))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(WITHIN_S)
    connection.connect((address, port))
    return connection


def find_family(address: str) -> int:
    """Return the family of an address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


if __name__ == "__main__":
    {"serve": serve, "ask": ask, "wait": wait}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
