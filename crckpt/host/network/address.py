"""Addresses that move to another host, as users type them: ADDR/LEN@DEV."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address, ip_interface
from typing import Final

from msgspec import Struct

from crckpt.errors import UsageError
from crckpt.host.proc.net import InetRow, InetTable, read_inet

TCP_TABLES: Final[tuple[InetTable, ...]] = ("tcp", "tcp6")

_EXAMPLE: Final = "for example: --move-ip 10.0.0.5/24@eth0"
# IFNAMSIZ, linux/if.h, without the final NUL.
_LONGEST_DEVICE: Final = 15


class HostAddress(Struct, frozen=True):
    """An address of a device of this host: `ip` in its usual form, `length` of its prefix in bits."""

    ip: str
    length: int
    device: str

    def __str__(self) -> str:
        """Return it as users type it."""
        return f"{self.ip}/{self.length}@{self.device}"

    @property
    def family(self) -> int:
        """4 or 6."""
        return ip_interface(self.ip).version

    @property
    def packed(self) -> bytes:
        """The bytes of the address, as in packets."""
        return ip_interface(self.ip).packed

    @property
    def interface(self) -> str:
        """It as ip(8) takes it: ADDR/LEN."""
        return f"{self.ip}/{self.length}"

    @property
    def prefix(self) -> str:
        """Its network: PREFIX/LEN."""
        return str(ip_interface(self.interface).network)

    @property
    def in_tables(self) -> tuple[str, ...]:
        """It as the kernel's tables of sockets have it: sockets of IPv6 may have an IPv4 address."""
        return (f"[{self.ip}]",) if self.family == 6 else (self.ip, f"[{ip_interface(f'::ffff:{self.ip}').ip}]")

    @property
    def is_single(self) -> bool:
        """Whether its network has no other address."""
        return self.length == (32 if self.family == 4 else 128)


def find_rows(
    addresses: Iterable[HostAddress], is_meant: Callable[[InetRow], object], tables: Iterable[InetTable] = TCP_TABLES
) -> Iterator[tuple[HostAddress, InetTable, InetRow]]:
    """Find the sockets of this network namespace at these addresses that are meant, with address and table."""
    hosts = {host: address for address in addresses for host in address.in_tables}
    for table in tables if hosts else ():
        for row in read_inet(os.getpid(), table):
            # First what takes less time: tables can be long.
            if is_meant(row) and (address := hosts.get(row.local.rpartition(":")[0])) is not None:
                yield address, table, row


def parse_address(text: str) -> HostAddress:
    """Read ADDR/LEN@DEV. Raises UsageError."""
    # From the left: the name of a device may contain neither a slash nor an at sign here.
    where, at, device = text.partition("@")
    ip, slash, length = where.partition("/")
    if not at or not slash:
        raise UsageError(f"'{text}' is not ADDR/LEN@DEV", hint=_EXAMPLE)
    # Source: dev_valid_name, net/core/dev.c.
    if not device or len(device.encode()) > _LONGEST_DEVICE:
        raise UsageError(f"the name of a network device has 1 to {_LONGEST_DEVICE} bytes: '{device}'", hint=_EXAMPLE)
    is_odd = any(character in "/:@" or character.isspace() or not character.isprintable() for character in device)
    if is_odd or device in (".", "..") or device.startswith("-"):
        raise UsageError(f"'{device}' cannot be a network device", hint=_EXAMPLE)
    if not (length.isascii() and length.isdecimal()):
        raise UsageError(f"'{length}' in '{text}' is not the length of a prefix", hint=_EXAMPLE)
    try:
        parsed = ip_interface(f"{ip}/{int(length)}")
    except ValueError as error:
        raise UsageError(f"'{where}' is not an address: {error}", hint=_EXAMPLE) from None
    address = parsed.ip
    if "%" in ip or address.is_link_local:
        raise UsageError(f"{ip} is valid on one link only and cannot move", hint="name a global address")
    kinds = (
        ("unspecified", address.is_unspecified),
        ("loopback", address.is_loopback),
        ("multicast", address.is_multicast),
        ("broadcast", address == IPv4Address("255.255.255.255")),
        ("mapped IPv4", address.version == 6 and address.ipv4_mapped is not None),
    )
    for kind, is_kind in kinds:
        if is_kind:
            raise UsageError(f"{ip} is a {kind} address and cannot move", hint=_EXAMPLE)
    return HostAddress(str(address), int(length), device)
