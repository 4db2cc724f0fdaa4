"""A client of numbered_server.py: it sends numbered requests on one connection all the time, and checks each answer.

It connects to ADDRESS and PORT, as soon as there is a server. Each line on its stdin gets a line of JSON on stdout:

- `report`: the report below
- `check`: the same, after the server has checked its memory; `memory` is then the server's verdict
- end of file: the same as `report`; then the client ends

replies            how many requests were answered, each exactly once and in order, by a counter that rose by 1
wrong              the first answer that was not the one expected, or null
ended              why the connection ended (the name of the error, or EOF), or null: then it goes on
longest_gap_ms     the longest time between two answers
recent_gap_ms      the same, since the last report
hosts              the hosts that answered, in the order in which they took over
memory             what the server said to `check` last, or null
"""

import errno
import json
import os
import selectors
import socket
import sys
import time
from typing import Final

PACE_S: Final = 0.001
CONNECT_S: Final = 120.0


class Client:
    """The connection, and what is known of it."""

    def __init__(self, address: str, port: int) -> None:
        """Connect."""
        self.replies = 0
        self.wrong: str | None = None
        self.ended: str | None = None
        self.hosts: list[str] = []
        self.memory: str | None = None
        self.longest = self.recent = 0.0
        self._first_counter: int | None = None
        self._received = b""
        self.connection = _connect(address, port)
        self._last = time.monotonic()
        self._send("1")

    def receive(self) -> None:
        """Read an answer, or a part of one; after a whole one send the next request."""
        try:
            content = self.connection.recv(1 << 16)
        except OSError as error:
            self._end(error)
            return
        if not content:
            self.ended = "EOF"
            return
        *lines, self._received = (self._received + content).split(b"\n")
        for line in lines:
            self._judge(line.decode())

    def ask_for_check(self) -> None:
        """Have the server check its memory, which counts as no gap."""
        self.memory = None
        self._send("check")
        while self.memory is None and self.ended is None:
            self.receive()
        self._last = time.monotonic()

    def report(self) -> str:
        """Return the report as JSON."""
        waiting = 0.0 if self.ended else time.monotonic() - self._last
        self.recent = max(self.recent, waiting)
        self.longest = max(self.longest, waiting)
        report = {
            "replies": self.replies,
            "wrong": self.wrong,
            "ended": self.ended,
            "longest_gap_ms": round(self.longest * 1000, 1),
            "recent_gap_ms": round(self.recent * 1000, 1),
            "hosts": self.hosts,
            "memory": self.memory,
        }
        self.recent = 0.0
        return json.dumps(report)

    def _judge(self, answer: str) -> None:
        if answer.startswith("check "):
            self.memory = answer.removeprefix("check ")
            return
        now = time.monotonic()
        gap, self._last = now - self._last, now
        self.recent = max(self.recent, gap)
        self.longest = max(self.longest, gap)
        try:
            number, counter, host = answer.split()
            if self._first_counter is None:
                self._first_counter = int(counter)
            right = int(number) == self.replies + 1 and int(counter) == self._first_counter + self.replies
        except ValueError:
            right, host = False, ""
        if not right:
            self.wrong = self.wrong or f"{answer!r} after {self.replies} replies"
            return
        if self.hosts[-1:] != [host]:
            self.hosts.append(host)
        self.replies += 1
        time.sleep(PACE_S)
        self._send(str(self.replies + 1))

    def _send(self, request: str) -> None:
        try:
            self.connection.sendall(request.encode() + b"\n")
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        self.ended = errno.errorcode.get(error.errno or 0, str(error))


def _connect(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            connection = socket.create_connection((address, port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(PACE_S)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


def main() -> None:
    """Talk to the server, and to the driver on stdin."""
    client = Client(sys.argv[1], int(sys.argv[2]))
    selector = selectors.DefaultSelector()
    selector.register(client.connection, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    received = b""
    while True:
        for key, _ in selector.select():
            if key.fileobj != 0:
                client.receive()
                if client.ended:
                    selector.unregister(client.connection)
                continue
            content = os.read(0, 1 << 16)
            *commands, received = (received + content).split(b"\n")
            for command in commands:
                if command == b"check":
                    client.ask_for_check()
                print(client.report(), flush=True)
            if not content:
                print(client.report(), flush=True)
                return


if __name__ == "__main__":
    main()
