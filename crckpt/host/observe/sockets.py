"""Read the TCP connections and other sockets of live processes, and find out whether addresses are free."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, Literal

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.observe.unix_sockets import UnixSocket
from crckpt.host.proc import procfs

_IP_FREEBIND = 15  # linux/in.h

_REFUSALS: Final[dict[int, Literal["taken", "missing"]]] = {
    errno.EADDRINUSE: "taken",
    errno.EADDRNOTAVAIL: "missing",
}

# include/net/tcp_states.h
_STATES = (
    "NONE",
    "ESTABLISHED",
    "SYN_SENT",
    "SYN_RECV",
    "FIN_WAIT1",
    "FIN_WAIT2",
    "TIME_WAIT",
    "CLOSE",
    "CLOSE_WAIT",
    "LAST_ACK",
    "LISTEN",
    "CLOSING",
    "NEW_SYN_RECV",
    "BOUND_INACTIVE",
)


# Num RefCount Protocol Flags Type St Inode Path (net/unix/af_unix.c)
_UNIX_SOCKET: Final = re.compile(
    r"\S+: [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{8} (?P<type>[0-9A-F]{4}) [0-9A-F]{2} +(?P<inode>\d+)(?: (?P<path>.*))?"
)

_LISTEN = f"{_STATES.index('LISTEN'):02X}"


class Connection(Struct, frozen=True):
    """A TCP socket of a live process that has a peer."""

    pid: int
    fd: int
    local: str
    remote: str
    status: str


def tcp_connections(pids: Iterable[int]) -> tuple[Connection, ...]:
    """Every TCP socket with a peer that these processes hold, each in its own network namespace."""
    return tuple(
        Connection(pid, fd, _shown(row[1]), _shown(row[2]), _STATES[int(row[3], 16)])
        for pid, fd, row in _tcp_sockets(pids)
        if not row[2].endswith(":0000")
    )


def waited_for(pids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """(PID, descriptor) of every listening TCP socket at which a connection waits to be accepted.

    Of a socket that listens the kernel says as the bytes to be read how many these are.
    """
    return tuple(
        (pid, fd) for pid, fd, row in _tcp_sockets(pids) if row[3] == _LISTEN and int(row[4].partition(":")[2], 16)
    )


def socket_titles(pid: int) -> dict[int, str]:
    """What each socket in a process's network namespace is called, by inode: `tcp 127.0.0.1:80 (listen)`.

    As the images have it. Of sockets of other families than internet and unix nothing is said.
    """
    titles = {found.inode: found.title for found in _unix_sockets(pid)}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for row in _rows(pid, table):
            to = "" if row[2].endswith(":0000") else f" -> {_shown(row[2])}"
            state = _STATES[int(row[3], 16)].lower().replace("_", "-")
            titles[int(row[9])] = f"{table.rstrip('6')} {_shown(row[1])}{to} ({state})"
    titles.pop(0, None)  # connections that nobody has open any more
    return titles


Binding = Literal["listen", "datagram", "connection"]
"""What a socket does with its address: a TCP socket that listens or is connected, or a UDP socket."""


def refusal(address: str, port: int, use: Binding) -> Literal["taken", "missing"] | None:
    """Whether a restore could not bind a socket there: it is taken, or the host does not have that address.

    A connection shares its port with whoever listens: it only needs the address. What else may be wrong, only a
    restore can tell.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_DGRAM if use == "datagram" else socket.SOCK_STREAM
    try:
        with socket.socket(family, kind) as trial:
            # As CRIU does it (criu/sk-inet.c): an IPv6 address may come later.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if use == "datagram":
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
            trial.bind((address, 0 if use == "connection" else port))
            if use == "listen":
                trial.listen(1)
    except OSError as error:
        return _REFUSALS.get(error.errno or 0)
    return None


def unix_datagram_sockets(pid: int) -> frozenset[int]:
    """Inodes of the unix datagram sockets in a process's network namespace."""
    return frozenset(found.inode for found in _unix_sockets(pid) if found.kind == socket.SOCK_DGRAM)


def _tcp_sockets(pids: Iterable[int]) -> Iterator[tuple[int, int, list[str]]]:
    """(PID, descriptor, row of the kernel's table). The kernel takes its time for a table: each is read once."""
    tables: dict[int, dict[str, list[str]]] = {}
    for pid in pids:
        with suppress(OSError):
            descriptors = _socket_descriptors(pid)
            space = proc.namespace(pid, "net") if descriptors else 0
            if descriptors and space not in tables:
                tables[space] = {row[9]: row for table in ("tcp", "tcp6") for row in _rows(pid, table)}
            for inode, fd in descriptors.items():
                if row := tables[space].get(inode):
                    yield pid, fd, row


def _socket_descriptors(pid: int) -> dict[str, int]:
    """Inode of each socket -> a descriptor of the process that leads to it. Raises OSError if it has ended."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                found[target[len("socket:[") : -1]] = int(name)
    return found


def _unix_sockets(pid: int) -> Iterator[UnixSocket]:
    """Without their peers."""
    with suppress(OSError):
        for line in procfs.lines(f"/proc/{pid}/net/unix")[1:]:
            # A name may hold line feeds: what follows them is no line of its own, though it may look like one.
            if found := _UNIX_SOCKET.fullmatch(line):
                yield UnixSocket(int(found["inode"]), int(found["type"], 16), 0, found["path"] or "")


def _rows(pid: int, table: str) -> Iterator[list[str]]:
    """sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ... (net/ipv4/tcp_ipv4.c)."""
    with suppress(OSError):
        yield from (line.split() for line in procfs.lines(f"/proc/{pid}/net/{table}")[1:])


def _shown(address: str) -> str:
    """The kernel writes addresses as hexadecimal words of four bytes in this machine's order."""
    words, port = address.split(":")
    packed = b"".join(int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8))
    host = ip_address(packed)
    return f"[{host}]:{int(port, 16)}" if host.version == 6 else f"{host}:{int(port, 16)}"
