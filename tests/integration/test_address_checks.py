"""Checks of addresses before they move, and effects of a move on the kernel's addresses and routes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from networks import DEVICE, Lan, Machine, lan

from crckpt.causes import Finding
from crckpt.errors import HostCannot
from crckpt.host.network.address import HostAddress, parse_address
from crckpt.host.network.claim import claim, find_fences, finish_release, give_up, lift_fence, raise_fence, release
from crckpt.host.network.devices import remove
from crckpt.host.process import run
from crckpt.migrate.addresses import check_destination, check_source
from crckpt.model import MoveId

MOVE = MoveId("0123456789abcdef")
IPV4 = parse_address(f"10.77.0.100/24@{DEVICE}")
IPV6 = parse_address(f"fd77::100/64@{DEVICE}")
families = pytest.mark.parametrize("address", [IPV4, IPV6], ids=["ipv4", "ipv6"])


@pytest.fixture(scope="module")
def hosts() -> Iterator[Lan]:
    with lan() as hosts:
        yield hosts


@pytest.fixture
def host(hosts: Lan) -> Iterator[Machine]:
    """A host with an address of each family, entered by this thread."""
    host = hosts.destination
    before = routes(host)
    with host.entered():
        yield host
        for address in host.addresses() - {"10.77.0.2/24", "fd77::2/64"}:
            host.run("ip", "address", "delete", address, "dev", DEVICE)
    assert routes(host) == before
    assert not host.tables()


def routes(host: Machine) -> set[str]:
    """All routes except those of multicast and of the link, which the kernel adds later."""
    lines = (line for family in "46" for line in host.run("ip", f"-{family}", "route").splitlines())
    return {line.strip() for line in lines if not line.startswith("fe80")}


def add(host: Machine, address: HostAddress, *more: str) -> None:
    extra = ("nodad",) if address.family == 6 else ()
    host.run("ip", "address", "add", address.interface, "dev", address.device, *extra, *more)


def only(findings: tuple[Finding, ...]) -> tuple[str, str]:
    (finding,) = findings
    return finding.what, finding.remedy


@families
def test_source_that_has_the_moved_address_is_accepted(host: Machine, address: HostAddress) -> None:
    add(host, address)
    assert check_source([address]) == ()


@families
def test_source_that_does_not_have_the_moved_address_is_refused(host: Machine, address: HostAddress) -> None:
    assert only(check_source([address])) == (
        f"this host does not have the address {address.ip}",
        "list its addresses: ip address show",
    )


@families
def test_source_that_has_the_moved_address_on_another_interface_is_refused(host: Machine, address: HostAddress) -> None:
    """The remedy is the option to type."""
    add(host, address)
    other = HostAddress(address.ip, address.length - 1, address.device)
    assert only(check_source([other]))[1] == f"--move-ip {address}"
    assert only(check_source([HostAddress(address.ip, address.length, "lo")]))[1] == f"--move-ip {address}"


@families
def test_move_of_an_address_leased_by_dhcp_is_refused(host: Machine, address: HostAddress) -> None:
    """The suggested remedy works."""
    add(host, address, "valid_lft", "1000", "preferred_lft", "1000")
    found, remedy = only(check_source([address]))
    assert "DHCP" in found
    host.run(*remedy.partition("or: ")[2].split())
    assert check_source([address]) == ()


def test_move_of_an_address_whose_removal_removes_others_is_refused(host: Machine) -> None:
    """The kernel removes all addresses of a network with the first one, unless it promotes them. The remedy works."""
    network = parse_address(f"10.78.0.1/24@{DEVICE}")
    add(host, network)
    add(host, parse_address(f"10.78.0.2/24@{DEVICE}"))
    host.run("sysctl", "-qw", "net.ipv4.conf.all.promote_secondaries=0")
    host.run("sysctl", "-qw", f"net.ipv4.conf.{DEVICE}.promote_secondaries=0")
    found, remedy = only(check_source([network]))
    assert "10.78.0.2" in found
    host.run(*remedy.replace("sysctl", "sysctl -q").split())
    assert check_source([network]) == ()
    remove(network)
    assert "10.78.0.2/24" in host.addresses()


def test_move_of_an_address_that_routes_depend_on_is_refused(host: Machine) -> None:
    add(host, IPV4)
    host.run("ip", "route", "add", "10.99.0.0/16", "via", "10.77.0.3", "src", IPV4.ip)
    found, _ = only(check_source([IPV4]))
    assert "10.99.0.0/16" in found
    remove(IPV4)
    assert not any("10.99" in route for route in routes(host))


@families
def test_suitable_destination_is_accepted(host: Machine, address: HostAddress) -> None:
    assert check_destination([address]) == ()


@families
def test_destination_without_the_device_is_refused(host: Machine, address: HostAddress) -> None:
    found, remedy = only(check_destination([HostAddress(address.ip, address.length, "eth9")]))
    assert found == "there is no network device eth9"
    assert remedy == f"name the other host's device, too: --move-ip {address.interface}@DEV:{DEVICE}"
    elsewhere = parse_address("192.0.2.1/24@eth9")
    assert only(check_destination([elsewhere]))[1].endswith(" --move-ip 192.0.2.1/24@DEV:DEV-THERE")


def test_destination_with_an_unusable_device_is_refused(host: Machine) -> None:
    """The device is down, has no link, or belongs to a bridge."""
    host.run("ip", "link", "add", "dev7", "type", "veth", "peer", "name", "dev8")
    try:
        address = parse_address("10.79.0.5/24@dev7")
        assert only(check_destination([address])) == ("dev7 is down", "ip link set dev7 up")
        host.run("ip", "link", "set", "dev7", "up")
        assert only(check_destination([address]))[0] == "dev7 has no link"
        host.run("ip", "link", "set", "dev8", "up")
        assert check_destination([address]) == ()
        host.run("ip", "link", "add", "br7", "type", "bridge")
        host.run("ip", "link", "set", "dev7", "master", "br7")
        what, remedy = only(check_destination([address]))
        assert what == "dev7 is part of br7, which has the addresses"
        assert remedy == f"name the other host's device, too: --move-ip {address.interface}@DEV:br7"
        host.run("ip", "link", "delete", "br7")
    finally:
        host.run("ip", "link", "delete", "dev7")


@families
def test_destination_that_already_has_the_address_is_refused(host: Machine, address: HostAddress) -> None:
    add(host, address)
    assert "is already on" in only(check_destination([address]))[0]


@families
def test_destination_with_the_network_on_another_device_is_refused(host: Machine, address: HostAddress) -> None:
    found, remedy = only(check_destination([HostAddress(address.ip, address.length, "lo")]))
    assert remedy.endswith(f" --move-ip {address.interface}@DEV:{DEVICE}")
    assert f"reaches the network of {address.ip} through {DEVICE}" in found


@families
def test_address_of_the_moves_own_connection_is_refused(
    host: Machine, address: HostAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", f"{address.ip} 40000 10.77.0.2 22")
    assert "the connection between the hosts uses" in only(check_destination([address]))[0]
    monkeypatch.setenv("SSH_CONNECTION", f"10.77.0.3 40000 {address.ip} 22")
    add(host, address)
    assert "your ssh session uses" in only(check_source([address]))[0]


def test_check_of_addresses_reports_a_missing_ip_program(host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.ENVIRONMENT, "PATH", "/nowhere")
    for check in (check_source, check_destination):
        assert only(check([IPV4])) == ("ip is not installed", "apt-get install iproute2")


def test_nft_that_the_kernel_refuses_is_reported_with_the_module_to_load(
    host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_refusing_nft(tmp_path)
    (tmp_path / "ip").symlink_to(shutil.which("ip") or "/usr/sbin/ip")
    monkeypatch.setitem(run.ENVIRONMENT, "PATH", str(tmp_path))
    found, remedy = only(check_destination([IPV4]))
    assert "Operation not permitted" in found
    assert remedy == "modprobe nf_tables"


def put_refusing_nft(directory: Path) -> None:
    (directory / "nft").write_text('#!/bin/sh\n[ "$1" = list ] || { echo Error: Operation not permitted; exit 1; }\n')
    (directory / "nft").chmod(0o700)


@families
def test_address_behind_the_fence_changes_no_route(host: Machine, address: HostAddress) -> None:
    """The routes do not change behind the fence or later. The kernel never chooses the IPv6 address by itself."""
    before = routes(host)
    assert claim([address], MOVE) == ()
    assert find_fences() == {MOVE}
    assert routes(host) == before
    shown = host.run("ip", "address", "show", "dev", DEVICE)
    assert ("deprecated" in shown) == (address.family == 6)
    assert "tentative" not in shown
    release([address], MOVE, ())
    assert routes(host) == before
    finish_release([address], MOVE, ())
    assert find_fences() == frozenset()
    assert routes(host) == before
    assert "deprecated" not in host.run("ip", "address", "show", "dev", DEVICE)
    give_up([address], MOVE)
    assert address.interface not in host.addresses()


@pytest.mark.parametrize(
    ("text", "gateway"), [(f"10.80.0.5/24@{DEVICE}", "10.77.0.99"), (f"fd80::5/64@{DEVICE}", "fd77::99")]
)
def test_address_in_a_new_network_gets_its_route_only_when_it_is_released(
    host: Machine, text: str, gateway: str
) -> None:
    """Before the release, other programs use the existing route. The new route is removed with the address."""
    address = parse_address(text)
    host.run("ip", f"-{address.family}", "route", "add", "default", "via", gateway)
    before = routes(host)
    assert claim([address], MOVE) == (address,)
    assert routes(host) == before
    release([address], MOVE, (address,))
    assert any(route.startswith(address.prefix) for route in routes(host) - before)
    finish_release([address], MOVE, (address,))
    assert find_fences() == frozenset()
    remove(address)
    assert routes(host) == before
    host.run("ip", f"-{address.family}", "route", "delete", "default")


@pytest.mark.parametrize("text", [f"10.80.0.5/32@{DEVICE}", f"fd80::5/128@{DEVICE}"])
def test_address_with_the_longest_prefix_gets_no_route(host: Machine, text: str) -> None:
    address = parse_address(text)
    assert claim([address], MOVE) == ()
    give_up([address], MOVE)


@families
def test_fence_and_address_can_be_set_and_removed_twice(host: Machine, address: HostAddress) -> None:
    for _ in range(2):
        raise_fence([address], MOVE)
    assert find_fences() == {MOVE}
    for _ in range(2):
        lift_fence([address], MOVE)
        remove(address)
        remove(HostAddress(address.ip, address.length, "eth9"))


def test_fence_that_the_kernel_refuses_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_refusing_nft(tmp_path)
    monkeypatch.setitem(run.ENVIRONMENT, "PATH", str(tmp_path))
    with pytest.raises(HostCannot, match=r"the moved address cannot be fenced off .* Operation not permitted"):
        raise_fence([IPV4], MOVE)
    with pytest.raises(ValueError, match="not the id of a move"):
        raise_fence([IPV4], MoveId("0123; flush ruleset"))
