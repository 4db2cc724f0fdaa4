"""A TCP server that answers numbered requests, and holds memory that it rewrites all the time.

It listens on ADDRESS and PORT when its memory is filled. The request `N` gets the answer `N COUNTER HOST`: COUNTER is 1
more for each request that the server answers, HOST is the name of the host on which it runs. The request `check` gets
the answer `check intact` or `check damaged PAGE`: whether each page holds what was last written into it.
"""

import argparse
import array
import mmap
import os
import selectors
import socket
import time
import zlib
from typing import Final

STEP_S: Final = 0.01
CATCH_UP_S: Final = 0.1
"""At most what is due for this time is rewritten at once: a clock may leap when a program moves."""


class Memory:
    """Pages of random bytes, and the checksum of each."""

    def __init__(self, mebibytes: int, share: float) -> None:
        """Fill the memory. `share` of its pages are rewritten per second."""
        self._pages = (mebibytes << 20) // mmap.PAGESIZE
        self._area = mmap.mmap(-1, max(1, self._pages) * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._checksums = array.array("I", bytes(4 * self._pages))
        self._share = share
        self._next = 0
        for page in range(self._pages):
            self._write(page)
        self._last = time.monotonic()

    def rewrite(self) -> None:
        """Rewrite the pages that are due."""
        now = time.monotonic()
        due = int(min(max(now - self._last, 0.0), CATCH_UP_S) * self._share * self._pages)
        if due:
            self._last = now
        for _ in range(due):
            self._write(self._next)
            # A stride that has no divisor in common with the number of pages reaches each of them.
            self._next = (self._next + 100_003) % self._pages

    def check(self) -> str:
        """Compare each page with its checksum."""
        for page in range(self._pages):
            at = page * mmap.PAGESIZE
            if zlib.crc32(self._area[at : at + mmap.PAGESIZE]) != self._checksums[page]:
                return f"damaged {page}"
        return "intact"

    def _write(self, page: int) -> None:
        content = os.urandom(mmap.PAGESIZE)
        self._area[page * mmap.PAGESIZE : (page + 1) * mmap.PAGESIZE] = content
        self._checksums[page] = zlib.crc32(content)


class Server:
    """The listening socket and the connections."""

    def __init__(self, address: str, port: int, memory: Memory) -> None:
        """Listen."""
        self._memory = memory
        self._counter = 0
        self._unfinished: dict[socket.socket, bytes] = {}
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family, dualstack_ipv6=address == "::")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Answer requests without end."""
        while True:
            for key, _ in self._selector.select(STEP_S):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._serve(key.fileobj)
            self._memory.rewrite()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unfinished[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _serve(self, connection: socket.socket) -> None:
        try:
            content = connection.recv(1 << 16)
            *lines, rest = (self._unfinished[connection] + content).split(b"\n")
            self._unfinished[connection] = rest
            for line in lines:
                connection.sendall(self._answer(line.decode()).encode() + b"\n")
        except ConnectionError:
            content = b""
        if not content:
            self._selector.unregister(connection)
            del self._unfinished[connection]
            connection.close()

    def _answer(self, request: str) -> str:
        if request == "check":
            return f"check {self._memory.check()}"
        self._counter += 1
        return f"{request} {self._counter} {os.uname().nodename}"


def main() -> None:
    """Fill the memory, then listen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--memory", type=int, default=0, help="MiB")
    parser.add_argument("--rewrite", type=float, default=0.0, help="the share of its pages that it rewrites per second")
    options = parser.parse_args()
    Server(options.address, options.port, Memory(options.memory, options.rewrite)).run()


if __name__ == "__main__":
    main()
