"""The network devices of this host. Devices are read, and addresses added and removed, mostly by ip(8), of iproute2."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field

from crckpt.errors import HostCannot
from crckpt.host.network.address import HostAddress
from crckpt.host.process import run
from crckpt.host.syscalls import netlink

# RTM_DELADDR, and struct ifaddrmsg (family, length of the prefix, flags, scope, device), nlattr. Source: rtnetlink(7).
_DELETE: Final = 21
_ADDRESS, _ATTRIBUTE = struct.Struct("=BBBBI"), struct.Struct("=HH")
_ATTRIBUTES: Final = (1, 2)  # IFA_ADDRESS, IFA_LOCAL
_WITHIN_S: Final = 10.0
_Decoded = TypeVar("_Decoded")


class DeviceAddress(Struct, frozen=True):
    """An address of a device. `dynamic`: it has a limited lifetime, as from DHCP or a router advertisement."""

    ip: str = field(name="local", default="")
    length: int = field(name="prefixlen", default=0)
    scope: str = ""
    dynamic: bool = False
    secondary: bool = False


class _LinkInfo(Struct, frozen=True):
    info_slave_kind: str = ""


class Device(Struct, frozen=True):
    """A network device. `master`: the bridge, bond or VRF that it is part of."""

    name: str = field(name="ifname", default="")
    flags: tuple[str, ...] = ()
    master: str = ""
    linkinfo: _LinkInfo = _LinkInfo()
    addresses: tuple[DeviceAddress, ...] = field(name="addr_info", default=())

    @property
    def is_up(self) -> bool:
        """Whether it is switched on."""
        return "UP" in self.flags

    @property
    def has_link(self) -> bool:
        """Whether its cable, or what stands for it, is plugged in."""
        return "LOWER_UP" in self.flags

    @property
    def is_port(self) -> bool:
        """Whether packets for its addresses go to another device. Those for the ports of a VRF do not."""
        return bool(self.master) and self.linkinfo.info_slave_kind != "vrf"


class Route(Struct, frozen=True):
    """A route. `gateway` is empty if the destination is on the link; `prefsrc` is the source address that it gives."""

    dst: str = ""
    dev: str = ""
    gateway: str = ""
    protocol: str = ""
    prefsrc: str = ""


def read_devices() -> tuple[Device, ...]:
    """Read all devices with their addresses. Raises HostCannot."""
    return _decode(_DEVICES, _ip("-json", "-details", "address", "show"))


def find_holder(ip: str) -> tuple[Device, DeviceAddress] | None:
    """The device that has this address, and the address; None if no device has it. Raises HostCannot."""
    wanted = ip_address(ip)
    found = ((device, address) for device in read_devices() for address in device.addresses if address.ip)
    return next(((device, address) for device, address in found if ip_address(address.ip) == wanted), None)


def read_routes(address: HostAddress) -> tuple[Route, ...]:
    """Read the routes of the address's family through its device. Raises HostCannot."""
    return _decode(_ROUTES, _ip("-json", f"-{address.family}", "route", "show", "dev", address.device))


def find_route(address: HostAddress) -> Route | None:
    """The route that packets to this address take now; None if there is none. Raises HostCannot."""
    found = _try_ip("-json", f"-{address.family}", "route", "get", address.ip)
    # It fails where there is no route.
    routes = _decode(_ROUTES, found) if found.ok else ()
    return routes[0] if routes else None


def add_silently(address: HostAddress) -> None:
    """Add an address that nothing here uses by itself, without a route and without announcing it. Raises HostCannot."""
    words = ["address", "add", address.interface, "dev", address.device, "noprefixroute"]
    if address.family == 6:
        # Deprecated: the kernel chooses it for no connection that others on this host begin. nodad: the other host
        # still has it.
        words += ["nodad", "valid_lft", "forever", "preferred_lft", "0"]
    _ip(f"-{address.family}", *words)


def make_ordinary(address: HostAddress, *, needs_route: bool) -> None:
    """Turn an address that was added silently into an ordinary one; `needs_route`: its network is on this link, too.

    Raises HostCannot.
    """
    if address.family == 6:
        flags = () if needs_route else ("noprefixroute",)
        words = ("address", "change", address.interface, "dev", address.device, "nodad", *flags)
        _ip("-6", *words, "valid_lft", "forever", "preferred_lft", "forever")
    elif needs_route:
        words = ("route", "replace", address.prefix, "dev", address.device)
        _ip("-4", *words, "proto", "kernel", "scope", "link", "src", address.ip)


def remove(address: HostAddress) -> None:
    """Remove an address, if its device has it. Raises HostCannot."""
    # By a message to the kernel: to start ip(8) for it takes 10 ms.
    with suppress(OSError):
        family = socket.AF_INET if address.family == 4 else socket.AF_INET6
        body = _ADDRESS.pack(family, address.length, 0, 0, socket.if_nametoindex(address.device))
        for kind in _ATTRIBUTES:
            body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address.packed), kind) + address.packed
        for _ in netlink.ask(socket.NETLINK_ROUTE, _DELETE, netlink.CHANGE, body):
            pass
        return
    # It says why.
    done = _try_ip(f"-{address.family}", "address", "delete", address.interface, "dev", address.device)
    if done.ok:
        return
    holder = find_holder(address.ip)
    if holder is not None and holder[0].name == address.device:
        raise HostCannot(f"cannot remove {address}: {done.output.strip()}", hint=run.quote(done.argv))


def _ip(*words: str) -> run.Finished:
    done = _try_ip(*words)
    if not done.ok:
        raise HostCannot(f"{run.quote(done.argv)}: {done.output.strip() or 'failed'}")
    return done


def _try_ip(*words: str) -> run.Finished:
    tool = run.find_program("ip")
    if tool is None:
        raise HostCannot("ip is not installed", hint="apt-get install iproute2")
    return run.run([tool, *words], timeout=_WITHIN_S)


def _decode(decoder: msgspec.json.Decoder[_Decoded], done: run.Finished) -> _Decoded:
    try:
        return decoder.decode(done.output or "[]")
    except msgspec.DecodeError as error:
        # Another program of that name, like BusyBox's.
        raise HostCannot(f"{run.quote(done.argv)} prints no JSON: {error}", hint="apt-get install iproute2") from None


_DEVICES: Final = msgspec.json.Decoder(tuple[Device, ...])
_ROUTES: Final = msgspec.json.Decoder(tuple[Route, ...])
