"""/proc/PID/net: the kernel's tables of the sockets in a process's network namespace. Source: proc_pid_net(5)."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, Literal

from msgspec import Struct

from crckpt.host.budget import Budget
from crckpt.host.proc import procfs

# Num RefCount Protocol Flags Type St Inode Path (net/unix/af_unix.c)
_UNIX: Final = re.compile(
    r"\S+: [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{8} (?P<type>[0-9A-F]{4}) [0-9A-F]{2} +(?P<inode>\d+)(?: (?P<path>.*))?"
)

# include/net/tcp_states.h
_STATES: Final = (
    *("NONE", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT"),
    *("LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV", "BOUND_INACTIVE"),
)

_TYPES: Final[dict[int, str]] = {
    socket.SOCK_STREAM: "stream",
    socket.SOCK_DGRAM: "datagram",
    socket.SOCK_SEQPACKET: "seqpacket",
}

InetTable = Literal["tcp", "tcp6", "udp", "udp6"]

_TIME_WAIT_TIMER: Final = "03"


class LiveUnixSocket(Struct, frozen=True):
    """A unix socket by its inode. `peer` is the inode of the other end, 0 if there is none; `name` what it is bound to.

    Abstract names begin with `@`. `is_connected`: also if the other end is closed. `clients`: the other ends of
    connections that it has not accepted, 0 for one that is closed or has sent something.
    """

    inode: int
    kind: int
    peer: int = 0
    name: str = ""
    is_connected: bool = False
    clients: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """Type and name; the inode if it has no name."""
        return f"unix {_TYPES.get(self.kind, self.kind)} {self.name or f'#{self.inode}'}"


class InetRow(Struct, frozen=True):
    """The words of a TCP or UDP socket's line: sl local remote st tx:rx tr:when retrnsmt uid timeout inode ...

    There may be very many: addresses are made of words only where they are asked for. Source: net/ipv4/tcp_ipv4.c.
    """

    words: tuple[str, ...]

    @property
    def inode(self) -> int:
        """The socket's inode; 0 if no process has it open any more."""
        return int(self.words[9])

    @property
    def local(self) -> str:
        """Its own address, like `127.0.0.1:80` or `[::1]:80`."""
        return _address(self.words[1])

    @property
    def local_port(self) -> int:
        """The port of its own address."""
        return int(self.words[1].rpartition(":")[2], 16)

    @property
    def remote(self) -> str:
        """The address of its peer."""
        return _address(self.words[2])

    @property
    def has_peer(self) -> bool:
        """Whether it is connected."""
        return not self.words[2].endswith(":0000")

    @property
    def state(self) -> str:
        """The name of its state, like `ESTABLISHED`."""
        return _STATES[int(self.words[3], 16)]

    @property
    def ends_in_s(self) -> float | None:
        """Seconds until the kernel forgets a closed connection that only waits for late packets; else None."""
        timer, _, when = self.words[5].partition(":")
        return int(when, 16) / os.sysconf("SC_CLK_TCK") if timer == _TIME_WAIT_TIMER else None

    @property
    def unsent(self) -> int:
        """Bytes that its peer has not acknowledged; the end of what it sends counts as one."""
        return int(self.words[4].partition(":")[0], 16)

    @property
    def unread(self) -> int:
        """Bytes that wait to be read; of a socket that listens, connections that wait to be accepted."""
        return int(self.words[4].partition(":")[2], 16)


def read_unix(pid: int) -> Iterator[LiveUnixSocket]:
    """The unix sockets, without their peers; none if the process has ended."""
    with suppress(OSError):
        for line in procfs.lines(f"/proc/{pid}/net/unix")[1:]:
            # A name may hold line feeds: what follows them is no line of its own, though it may look like one.
            if found := _UNIX.fullmatch(line):
                yield LiveUnixSocket(int(found["inode"]), int(found["type"], 16), name=found["path"] or "")


def read_inet(pid: int, table: InetTable) -> Iterator[InetRow]:
    """The TCP or UDP sockets; none if the process has ended."""
    with suppress(OSError):
        yield from (InetRow(tuple(line.split())) for line in procfs.lines(f"/proc/{pid}/net/{table}")[1:])


def has_packet_sockets(pid: int) -> bool:
    """Return whether there are packet sockets."""
    with suppress(OSError):
        return len(procfs.lines(f"/proc/{pid}/net/packet")) > 1
    return False


def read_netlink(pid: int) -> Iterator[tuple[int, int, int]]:
    """(inode, protocol, port) of the netlink sockets; none if the process has ended.

    The protocol is that of linux/netlink.h, the port 0 if it is bound to none.
    """
    with suppress(OSError):
        # sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode (net/netlink/af_netlink.c)
        for words in (line.split() for line in procfs.lines(f"/proc/{pid}/net/netlink")[1:]):
            yield int(words[9]), int(words[1]), int(words[2])


def read_multicast_groups(pid: int, budget: Budget) -> Iterator[tuple[str, int, int]]:
    """(address, index of the interface, number of its users) of the multicast groups that are joined."""
    index = 0
    with suppress(OSError):
        # A line `INDEX DEVICE : COUNT QUERIER` for each interface, then its groups, indented: `GROUP USERS TIMER ...`
        # (net/ipv4/igmp.c).
        for line in budget.read_lines(f"/proc/{pid}/net/igmp")[1:]:
            words = line.split()
            if not line.startswith("\t"):
                index = int(words[0])
            else:
                yield socket.inet_ntoa(int(words[0], 16).to_bytes(4, sys.byteorder)), index, int(words[1])
    with suppress(OSError):
        # `INDEX DEVICE GROUP USERS FLAGS TIMER`, without a headline (net/ipv6/mcast.c).
        for line in budget.read_lines(f"/proc/{pid}/net/igmp6"):
            words = line.split()
            yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[2])), int(words[0]), int(words[3])


def _address(word: str) -> str:
    """The kernel writes addresses as hexadecimal words of four bytes in this machine's order."""
    words, port = word.split(":")
    packed = b"".join(int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8))
    host = ip_address(packed)
    return f"[{host}]:{int(port, 16)}" if host.version == 6 else f"{host}:{int(port, 16)}"
