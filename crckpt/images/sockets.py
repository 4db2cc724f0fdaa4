"""Sockets in `files.img` (images/sk-inet.proto, sk-unix.proto, sk-netlink.proto, packet-sock.proto)."""

from __future__ import annotations

import os
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.decode import Field
from crckpt.images.framing import read_messages
from crckpt.images.wire import Message
from crckpt.model import Count

INET: Final = 2
INET6: Final = 10

STREAM: Final = "stream"
DATAGRAM: Final = "datagram"
RAW: Final = "raw"
SEQPACKET: Final = "seqpacket"

ESTABLISHED: Final = "established"
LISTEN: Final = "listen"
CLOSE: Final = "close"

# SOCK_STREAM and so on (socket(2)).
_TYPES: Final = {1: STREAM, 2: DATAGRAM, 3: RAW, 5: SEQPACKET}
_PROTOCOLS: Final = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 136: "udplite"}
# By the kernel's numbers (include/net/tcp_states.h), which CRIU uses for other sockets, too.
_STATES: Final = (
    "unknown",
    ESTABLISHED,
    "syn-sent",
    "syn-recv",
    "fin-wait-1",
    "fin-wait-2",
    "time-wait",
    CLOSE,
    "close-wait",
    "last-ack",
    LISTEN,
    "closing",
)
_CONNECTED: Final = frozenset(_STATES) - {"unknown", CLOSE, LISTEN, "time-wait"}
# USK_EXTERN (criu/sk-unix.c:57).
_EXTERNAL_PEER: Final = 1
_LAST_PORT: Final = (1 << 16) - 1
# They also travel, as the questions of a move: the types limit them.
_Word = Annotated[str, Meta(max_length=64)]
_Name = Annotated[bytes, Meta(max_length=4096)]


class Address(Struct, frozen=True):
    """A host, as text, and a port."""

    host: _Word
    port: Annotated[int, Meta(ge=0, le=_LAST_PORT)]

    @property
    def ip(self) -> IPv4Address | IPv6Address | None:
        """The address in its packets: an IPv6 socket may have an IPv4 address. None if `host` is no address."""
        try:
            found = ip_address(self.host)
        except ValueError:
            return None
        return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found

    def __str__(self) -> str:
        """The usual form: `127.0.0.1:80`, `[::1]:80`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _type(number: int) -> str:
    return _TYPES.get(number, str(number))


def _state(number: int) -> str:
    return _STATES[number] if number < len(_STATES) else "unknown"


def _address(message: Message, host: int, port: int) -> Address:
    """Read an address from the fields of its host and port."""
    family, number = message.required(3), message.required(port)
    if number > _LAST_PORT:
        raise IntegrityError(f"{message.where}: {number} is not a port")
    # A host is a list of four-byte words in network byte order.
    words = message.uints(host)
    packed = b"".join((word & 0xFFFFFFFF).to_bytes(4, "little") for word in words)
    if family == INET and len(words) == 1:
        return Address(str(IPv4Address(packed)), number)
    if family == INET6 and len(words) == 4:
        return Address(str(IPv6Address(packed)), number)
    if not words:
        return Address(str(IPv6Address(0) if family == INET6 else IPv4Address(0)), number)
    raise IntegrityError(f"{message.where}: an address of family {family} has {len(words)} words")


def _unix_name(name: bytes) -> bytes:
    # A path ends at the first zero byte, as for the kernel. An abstract name begins with one and may contain more.
    return name.replace(b"\0", b"@") if name.startswith(b"\0") else name.partition(b"\0")[0]


class InetSocket(Struct, frozen=True, tag_field="is", tag=True):
    """A TCP, UDP, ICMP or raw socket.

    - `family`: AF_INET or AF_INET6
    - `type`: STREAM, DATAGRAM or RAW
    - `protocol`: a name or number
    - `state`: a TCP state in lower case; a connected UDP socket is ESTABLISHED, any other CLOSE
    - `interface`: the one that it is bound to, if any
    - `inode`: also names the connection's image, `tcp-stream-<inode, hexadecimal>.img`
    """

    kind: ClassVar[str] = "inet socket"

    id: Annotated[Count, 1]
    inode: Annotated[Count, 2]
    family: Annotated[Count, 3]
    type: Annotated[_Word, Field(4, convert=_type)]
    protocol: Annotated[_Word, Field(5, convert=lambda number: _PROTOCOLS.get(number, str(number)))]
    state: Annotated[_Word, Field(6, convert=_state)]
    source: Annotated[Address, Field(convert=lambda message: _address(message, host=11, port=7))]
    destination: Annotated[Address, Field(convert=lambda message: _address(message, host=12, port=8))]
    flags: Annotated[Count, Field(9, default=0)] = 0
    backlog: Annotated[Count, Field(10, default=0)] = 0
    # That of its IPv6 address, or of SO_BINDTODEVICE (images/sk-opts.proto).
    interface: Annotated[_Word, Field(convert=lambda message: message.text(17) or message.message(14).text(15))] = ""
    namespace: Annotated[Count, Field(18, default=0)] = 0

    @property
    def title(self) -> str:
        to = f" -> {self.destination}" if self.is_connected else ""
        return f"{self.protocol} {self.source}{to} ({self.state})"

    @property
    def is_listening(self) -> bool:
        """Whether it accepts TCP connections."""
        return self.protocol == "tcp" and self.state == LISTEN

    @property
    def is_connected(self) -> bool:
        """Whether it has a peer. For TCP: whether a restore needs `--tcp-established` or `--tcp-close`."""
        return self.state in _CONNECTED

    @property
    def is_established_tcp(self) -> bool:
        """Whether it is a TCP connection, in any state in which it has a peer."""
        return self.protocol == "tcp" and self.is_connected


class UnixSocket(Struct, frozen=True, tag_field="is", tag=True):
    """A unix socket.

    - `name_bytes`: a path, relative to `directory`; `@name` if abstract, empty if there is none
    - `peer`: the peer's inode, 0 if there is none
    - `external`: it is another program's, and only here because the tree is connected to it
    - `deleted`: the path no longer led to the socket
    """

    kind: ClassVar[str] = "unix socket"

    id: Annotated[Count, 1]
    inode: Annotated[Count, 2]
    type: Annotated[_Word, Field(3, convert=_type)]
    state: Annotated[_Word, Field(4, convert=_state)]
    name_bytes: Annotated[_Name, Field(11, wire=bytes, convert=_unix_name)] = b""
    directory: Annotated[str, Meta(max_length=4096), 14] = ""
    peer: Annotated[Count, Field(8, default=0)] = 0
    flags: Annotated[Count, Field(5, default=0)] = 0
    backlog: Annotated[Count, Field(7, default=0)] = 0
    external: Annotated[bool, Field(6, default=0, convert=lambda flags: bool(flags & _EXTERNAL_PEER))] = False
    deleted: Annotated[bool, 15] = False

    @property
    def name(self) -> str:
        """Its name, as Python has it."""
        return os.fsdecode(self.name_bytes)

    @property
    def title(self) -> str:
        """Name and state, or the inode if it has no name."""
        return f"unix {self.type} {self.name or f'#{self.inode}'} ({self.state})"

    @property
    def is_listening(self) -> bool:
        """Whether it accepts connections."""
        return self.state == LISTEN and self.type != DATAGRAM

    @property
    def type_number(self) -> int:
        """Its type, as of socket(2); 0 if it is unknown."""
        return next((number for number, name in _TYPES.items() if name == self.type), 0)

    @property
    def is_bound(self) -> bool:
        """Whether it was bound to its name; one that was accepted has the name of another."""
        return bool(self.name) and (self.type == DATAGRAM or self.state != ESTABLISHED)

    @property
    def is_abstract(self) -> bool:
        """Whether its name is no path."""
        return self.name.startswith("@") and not self.directory

    @property
    def path(self) -> str:
        """The absolute path of its file; empty if it has none, or that is not known."""
        if self.name.startswith("/"):
            return self.name
        return f"{self.directory.rstrip('/')}/{self.name}" if self.directory else ""


class NetlinkSocket(Struct, frozen=True, tag_field="is", tag=True):
    """A netlink socket; `protocol` is a number of linux/netlink.h."""

    kind: ClassVar[str] = "netlink socket"

    id: Annotated[Count, 1]
    inode: Annotated[Count, 2]
    protocol: Annotated[Count, 3]
    port_id: Annotated[Count, 7]
    flags: Annotated[Count, 6] = 0

    @property
    def title(self) -> str:
        return f"netlink protocol {self.protocol}"


class PacketSocket(Struct, frozen=True, tag_field="is", tag=True):
    """A packet socket, on interface number `interface` (0: all)."""

    kind: ClassVar[str] = "packet socket"

    id: Annotated[Count, 1]
    type: Annotated[_Word, Field(2, convert=_type)]
    protocol: Annotated[Count, 3] = 0
    interface: Annotated[Count, 5] = 0
    flags: Annotated[Count, 4] = 0

    @property
    def title(self) -> str:
        return f"packet {self.type} {self.protocol:#06x}"


def read_in_flight(data: bytes, name: str = "sk-queues.img") -> frozenset[int]:
    """Return the ids of the open files that wait in unix sockets (SCM_RIGHTS; images/sk-packet.proto).

    Raises IntegrityError if the image is damaged.
    """
    packets = read_messages(data, name, magics.SK_QUEUES)
    return frozenset(file for packet in packets for sent in packet.messages(4) for file in sent.uints(2))


Socket = InetSocket | UnixSocket | NetlinkSocket | PacketSocket
