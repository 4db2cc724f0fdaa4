"""A client of redis: it writes and reads keys on several connections all the time, and checks each reply.

It makes KEYS keys at ADDRESS and PORT, shared out among CONNECTIONS connections. Each of these then goes on: it gives
one of its keys a new value, reads that back, and reads another key of its own. Each line on its stdin gets a line of
JSON on stdout: the report below, also at the end of file; then the client ends. Before it answers `check`, each
connection compares all of its keys.

replies            how many replies came, each exactly the one expected
wrong              the first reply that was not, or null
ended              why a connection ended (the name of the error, or EOF), or null
longest_gap_ms     the longest time between two replies on a connection
recent_gap_ms      the same, since the last report
keys               how many keys were compared by the last `check`
"""

import errno
import json
import random
import socket
import sys
import threading
import time
from typing import Final

MOST_AT_ONCE: Final = 1000
CONNECT_S: Final = 120.0


class WrongReply(Exception):
    """The server has sent another reply than the expected one."""


class Connection:
    """One connection, which alone writes its keys: so it knows the value of each."""

    def __init__(self, address: str, port: int, number: int, keys: range) -> None:
        self.replies = 0
        self.failure: tuple[str, str] | None = None
        self.longest = self.recent = 0.0
        self.compared = 0
        self.checks = 0
        self.wanted_checks = 0
        self.last = time.monotonic()
        self._keys = keys
        self._versions = dict.fromkeys(keys, 0)
        self._random = random.Random(number)
        self._socket = _connect(address, port)
        self._received = b""

    def make_keys(self) -> None:
        """Give each key its first value."""
        for keys in self._parts():
            for reply in self._ask(*((b"SET", _name(key), self._value(key)) for key in keys)):
                _expect(reply, b"+OK")

    def run(self) -> None:
        """Write and read until the connection ends or a reply is wrong."""
        try:
            while True:
                if self.checks < self.wanted_checks:
                    self._compare_all()
                    self.checks += 1
                self._step()
        except WrongReply as error:
            self.failure = ("wrong", str(error))
        except EOFError:
            self.failure = ("ended", "EOF")
        except OSError as error:
            self.failure = ("ended", errno.errorcode.get(error.errno or 0, str(error)))

    def _step(self) -> None:
        key, other = (self._random.choice(self._keys) for _ in range(2))
        self._versions[key] += 1
        (reply,) = self._ask((b"SET", _name(key), self._value(key)))
        _expect(reply, b"+OK")
        for each, reply in zip((key, other), self._ask((b"GET", _name(key)), (b"GET", _name(other))), strict=True):
            _expect(reply, self._value(each))

    def _compare_all(self) -> None:
        for keys in self._parts():
            for key, reply in zip(keys, self._ask(*((b"GET", _name(key)) for key in keys)), strict=True):
                _expect(reply, self._value(key))
        self.compared = len(self._versions)

    def _value(self, key: int) -> bytes:
        return b"%d of version %d" % (key, self._versions[key])

    def _parts(self) -> list[range]:
        return [self._keys[start : start + MOST_AT_ONCE] for start in range(0, len(self._keys), MOST_AT_ONCE)]

    def _ask(self, *commands: tuple[bytes, ...]) -> list[bytes]:
        """Send commands, and return the reply to each. Source: the RESP2 protocol."""
        self._socket.sendall(b"".join(map(_encode, commands)))
        return [self._receive() for _ in commands]

    def _receive(self) -> bytes:
        line = self._read_line()
        if line.startswith(b"$") and line != b"$-1":
            length = int(line[1:])
            while len(self._received) < length + 2:
                self._read_more()
            line, self._received = self._received[:length], self._received[length + 2 :]
        now = time.monotonic()
        gap, self.last = now - self.last, now
        self.longest, self.recent = max(self.longest, gap), max(self.recent, gap)
        self.replies += 1
        return line

    def _read_line(self) -> bytes:
        while b"\r\n" not in self._received:
            self._read_more()
        line, _, self._received = self._received.partition(b"\r\n")
        return line

    def _read_more(self) -> None:
        content = self._socket.recv(1 << 16)
        if not content:
            raise EOFError
        self._received += content


def _name(key: int) -> bytes:
    return b"key:%d" % key


def _encode(words: tuple[bytes, ...]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _expect(reply: bytes, expected: bytes) -> None:
    if reply != expected:
        raise WrongReply(f"{reply!r}, not {expected!r}")


def _connect(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            connection = socket.create_connection((address, port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


def report(connections: list[Connection]) -> str:
    """Return the report as JSON."""
    failures = dict(each.failure for each in reversed(connections) if each.failure)
    now = time.monotonic()
    waiting = max(now - each.last for each in connections)
    document = {
        "replies": sum(each.replies for each in connections),
        "wrong": failures.get("wrong"),
        "ended": failures.get("ended"),
        "longest_gap_ms": round(max(waiting, *(each.longest for each in connections)) * 1000, 1),
        "recent_gap_ms": round(max(waiting, *(each.recent for each in connections)) * 1000, 1),
        "keys": sum(each.compared for each in connections),
    }
    for each in connections:
        each.recent = 0.0
    return json.dumps(document)


def check(connections: list[Connection]) -> None:
    """Have each connection compare all of its keys."""
    for each in connections:
        each.compared = 0
        each.wanted_checks += 1
    while any(each.checks < each.wanted_checks and each.failure is None for each in connections):
        time.sleep(0.01)


def main() -> None:
    """Talk to redis, and to the driver on stdin."""
    address, port, keys, number = sys.argv[1], *map(int, sys.argv[2:])
    connections = [Connection(address, port, first, range(first, keys, number)) for first in range(number)]
    for each in connections:
        each.make_keys()
    for each in connections:
        each.last = time.monotonic()
        threading.Thread(target=each.run, daemon=True).start()
    for line in sys.stdin:
        if line == "check\n":
            check(connections)
        print(report(connections), flush=True)
    print(report(connections), flush=True)


if __name__ == "__main__":
    main()
