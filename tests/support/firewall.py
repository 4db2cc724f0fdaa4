"""The tables of the packet filter, read from the kernel itself: starting nft takes as long as a short test."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final

# linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
_NETLINK_NETFILTER: Final = 12
_GET_TABLE: Final = 10 << 8 | 1
_REQUEST_DUMP: Final = 0x1 | 0x300
_DONE, _ERROR = 3, 2
_MESSAGE: Final = struct.Struct("=IHHII")
_FAMILY: Final = struct.Struct("=BBH")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NAME: Final = 1
_FAMILIES: Final = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}


def tables() -> frozenset[str]:
    """All tables of this network namespace, as `nft list tables` names them."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
        body = _FAMILY.pack(0, 0, 0)
        kernel.send(_MESSAGE.pack(_MESSAGE.size + len(body), _GET_TABLE, _REQUEST_DUMP, 1, 0) + body)
        return frozenset(_read(kernel))


def _read(kernel: socket.socket) -> Iterator[str]:
    while True:
        data = kernel.recv(1 << 16)
        while data:
            length, kind, *_ = _MESSAGE.unpack_from(data)
            if kind == _ERROR:
                (code,) = struct.unpack_from("=i", data, _MESSAGE.size)
                raise OSError(-code, "the kernel does not list its tables")
            if kind == _DONE:
                return
            family, *_ = _FAMILY.unpack_from(data, _MESSAGE.size)
            yield f"{_FAMILIES.get(family, family)} {_name(data[_MESSAGE.size + _FAMILY.size : length])}"
            data = data[(length + 3) & ~3 :]


def _name(attributes: bytes) -> str:
    while attributes:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _NAME:
            return attributes[_ATTRIBUTE.size : length].rstrip(b"\0").decode()
        attributes = attributes[(length + 3) & ~3 :]
    return ""
