"""The addresses that move with a tree (`--move-ip`): what each side checks and does, in which order.

1. Both sides check (`check_source`, `check_destination`), before anything is touched.
2. Destination, before the restore: `guarded_addresses` (it starts a process: best before the tree is frozen), then
   `claim`. The addresses are there, behind a fence: the restore binds them, the source's connections notice nothing.
3. Source, after the commit and the end of the tree: the hook `release`, then `leave_source`. It removes the addresses.
   Then `unlocked_source` begins to remove CRIU's network lock: in the other order this host would reset the
   connections. It takes a while, and the destination need not wait for it.
4. Destination: `expect` the tree, decide that it runs (the commit of its hold), `release`, let it run, `keep`. A fence
   that was open before the decision would let out the resets of a tree that CRIU ends.

If the move is aborted after step 2, the destination ends the tree and leaves the block of `guarded_addresses`, which
removes the addresses, and then the fence. On the source nothing has changed. `give_up` does the same for a crckpt that
was killed together with its guard.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.causes import Finding, cause
from crckpt.errors import UsageError
from crckpt.host import proc
from crckpt.host.network.address import HostAddress, parse_address
from crckpt.host.network.devices import Device, find_holder, find_route, read_devices, read_routes, remove
from crckpt.host.network.packet_filter import find_removal, lock_removed
from crckpt.host.probes.network import move_ip
from crckpt.host.probes.trial import probe_in_child
from crckpt.host.process import run
from crckpt.host.steps import step
from crckpt.migrate.wire.messages import MOST_ADDRESSES
from crckpt.model import RunId

_SSH_CONNECTION: Final = b"SSH_CONNECTION="


def list_source_addresses(addresses: Sequence[str]) -> tuple[HostAddress, ...]:
    """The moving addresses as the source has them. Each is ADDR/LEN@DEV or ADDR/LEN@DEV:THERE. Raises UsageError."""
    if len(addresses) > MOST_ADDRESSES:
        raise UsageError(f"--move-ip: {len(addresses)} addresses are too many; at most {MOST_ADDRESSES} can move")
    return tuple(_split(address)[0] for address in addresses)


def list_destination_addresses(addresses: Iterable[str]) -> tuple[HostAddress, ...]:
    """The moving addresses as the destination gets them. Raises UsageError."""
    return tuple(_split(address)[1] for address in addresses)


def _split(address: str) -> tuple[HostAddress, HostAddress]:
    here, colon, there = address.partition("@")[2].partition(":")
    where = address.partition("@")[0]
    if not colon:
        found = parse_address(address)
        return found, found
    return parse_address(f"{where}@{here}"), parse_address(f"{where}@{there}")


def check_source(addresses: Sequence[HostAddress]) -> tuple[Finding, ...]:
    """Find why this host cannot give the addresses away. Raises HostCannot."""
    if run.find_program("ip") is None:
        return (cause("ip-missing").finding(),)
    return tuple(finding for address in addresses for finding in _check_here(address))


def check_destination(addresses: Sequence[HostAddress]) -> tuple[Finding, ...]:
    """Find why this host cannot take the addresses over. Raises HostCannot."""
    probed = probe_in_child(move_ip)
    if probed.state == "missing":
        return (cause("ip-unusable").finding(why=probed.found, fix=probed.fix),)
    devices = {device.name: device for device in read_devices()}
    return tuple(finding for address in addresses for finding in _check_there(address, devices))


def leave_source(addresses: Sequence[HostAddress]) -> None:
    """Remove the addresses, after the tree has ended; again, if asked. Raises HostCannot if one is still here."""
    for address in addresses:
        step("source.remove", str(address))
        remove(address)


@contextmanager
def unlocked_source(run_id: RunId | None, removal: tuple[str, ...] | None = None) -> Iterator[None]:
    """Remove the network lock of CRIU's run `run_id` (None: none) while the block runs, after `leave_source`.

    `removal` is the command for that, if it was looked for. May be called again. Raises HostCannot.
    """
    if removal is None and run_id is not None:
        removal = find_removal(run_id)
    if removal is None or run_id is None:
        yield
        return
    step("source.unlock", run_id)
    with lock_removed(run_id, removal):
        yield


def _check_here(address: HostAddress) -> Iterator[Finding]:
    holder = find_holder(address.ip)
    if holder is None:
        yield cause("address-absent").finding(ip=address.ip)
        return
    device, held = holder
    if (device.name, held.length) != (address.device, address.length):
        where = f"{address.ip}/{held.length}@{device.name}"
        yield cause("address-other").finding(ip=address.ip, held=where, address=address)
        return
    if held.dynamic:
        named = {"interface": address.interface, "device": device.name}
        yield cause("address-dynamic").finding(address=address, **named)
    if address.ip in _ends_of_ssh():
        yield cause("address-of-session").finding(ip=address.ip)
    # What the kernel removes together with it.
    others = [other for other in device.addresses if other.ip != held.ip and other.scope != "link"]
    same_family = [other for other in others if (":" in other.ip) == (address.family == 6)]
    if address.family == 4 and not held.secondary and not _promotes(device.name):
        networks = ((other, HostAddress(other.ip, other.length, address.device)) for other in same_family)
        lost = [other.ip for other, network in networks if other.secondary and network.prefix == address.prefix]
        if lost:
            yield cause("address-secondary").finding(lost=", ".join(lost), device=device.name, ip=address.ip)
    routes = [route for route in read_routes(address) if route.protocol != "kernel"]
    gone = [route for route in routes if route.prefsrc == address.ip or (route.gateway and not same_family)]
    if gone and address.family == 4:
        names = ", ".join(route.dst for route in gone)
        yield cause("address-routes").finding(routes=names, device=device.name, ip=address.ip)


def _check_there(address: HostAddress, devices: dict[str, Device]) -> Iterator[Finding]:
    device = devices.get(address.device)
    if device is None:
        route = find_route(address)
        there = route.dev if route is not None and not route.gateway else "DEV-THERE"
        yield cause("device-missing").finding(device=address.device, interface=address.interface, there=there)
        return
    if not device.is_up:
        yield cause("device-down").finding(device=device.name)
    elif not device.has_link:
        yield cause("device-unlinked").finding(device=device.name)
    if device.is_port:
        named = {"master": device.master, "interface": address.interface, "there": device.master}
        yield cause("device-port").finding(device=device.name, **named)
    holder = find_holder(address.ip)
    if holder is not None:
        yield cause("address-there").finding(ip=address.ip, device=holder[0].name)
        return
    if address.ip in _ends_of_ssh():
        yield cause("address-of-connection").finding(ip=address.ip)
    route = find_route(address)
    if route is not None and not route.gateway and route.dev != device.name and not address.is_single:
        named = {"device": device.name, "interface": address.interface, "there": route.dev}
        yield cause("network-elsewhere").finding(ip=address.ip, route=route.dev, **named)


def _ends_of_ssh() -> tuple[str, ...]:
    """The addresses of client and server of the ssh connection that started us. Source: ssh(1), SSH_CONNECTION."""
    found = os.environ.get("SSH_CONNECTION", "")
    # sudo does not hand it down: the nearest ancestor that has it counts.
    for pid in () if found else proc.ancestors(os.getpid()):
        with suppress(OSError):
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            own = (entry.removeprefix(_SSH_CONNECTION) for entry in entries if entry.startswith(_SSH_CONNECTION))
            if (entry := next(own, None)) is not None:
                found = os.fsdecode(entry)
                break
    words = found.split()
    return (words[0], words[2]) if len(words) == 4 else ()


def _promotes(device: str) -> bool:
    """Return whether the kernel keeps a network's other addresses when it loses the first (ip-sysctl.rst)."""
    # The kernel takes the larger one of both values.
    for name in ("all", device):
        with suppress(OSError):
            if Path(f"/proc/sys/net/ipv4/conf/{name}/promote_secondaries").read_text().strip() != "0":
                return True
    return False
