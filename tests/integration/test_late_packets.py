"""Packets sent while the tree was frozen reach the restored sockets, even if the peer is silent afterwards."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from networks import DEVICE, WITHIN_S, Lan, lan
from trees import wait_for

from crckpt.host.network.address import HostAddress, parse_address
from crckpt.host.network.late_packets import capturing, deliver

PORT = 7070
MOST_PACKETS = 256
DROPPING_RULES = "table inet silence {{ chain {hook} {{ type filter hook {hook} priority 0; tcp dport 7070 drop; }}; }}"
# Sends segments with data from many ports as fast as possible. The sender needs no connection for that.
FLOODING_PROGRAM = """
import itertools, socket, struct
link = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
for port in itertools.cycle(range(1, 1 << 16)):
    segment = struct.pack("!HHIIBBHHH", port, 7070, 1, 1, 5 << 4, 0x18, 1000, 0, 0)
    link.sendto(segment + bytes(100), ("10.77.0.1", 0))
"""
ADDRESSES = (f"10.77.0.1/24@{DEVICE}", f"fd77::1/64@{DEVICE}")


@pytest.fixture
def hosts() -> Iterator[Lan]:
    with lan() as hosts:
        yield hosts


@pytest.fixture(params=ADDRESSES, ids=["ipv4", "ipv6"])
def address(request: pytest.FixtureRequest) -> HostAddress:
    return parse_address(request.param)


def connect(hosts: Lan, address: HostAddress) -> tuple[socket.socket, socket.socket]:
    """The source's end of a connection, and the client's."""
    family = socket.AF_INET6 if address.family == 6 else socket.AF_INET
    with hosts.source.entered():
        listener = socket.create_server((address.ip, PORT), family=family)
    with closing(listener), hosts.client.entered():
        ours = socket.create_connection((address.ip, PORT), timeout=WITHIN_S)
        theirs, _ = listener.accept()
        theirs.settimeout(WITHIN_S)
        return theirs, ours


def test_packet_that_arrives_during_a_freeze_is_captured_and_delivered_later(hosts: Lan, address: HostAddress) -> None:
    server, client = connect(hosts, address)
    with closing(server), closing(client), hosts.source.entered():
        hosts.source.run("nft", DROPPING_RULES.format(hook="input"))
        with capturing((address,)) as capture:
            client.sendall(b"late")
            wait_for(lambda: bool(capture.take()), WITHIN_S, "the packet")
            # From now on the client cannot send the packet again.
            with hosts.client.entered():
                hosts.client.run("nft", DROPPING_RULES.format(hook="output"))
            packets = capture.take()
        hosts.source.run("nft", "delete table inet silence")
        deliver(packets, (address,))
        assert server.recv(100) == b"late"


def test_packet_for_another_address_is_not_delivered(hosts: Lan, address: HostAddress) -> None:
    """The other host of a move sends the packets: it must not choose another address for them."""
    server, client = connect(hosts, address)
    other = parse_address(next(text for text in ADDRESSES if text[0] != str(address)[0]))
    with closing(server), closing(client), hosts.source.entered():
        hosts.source.run("nft", DROPPING_RULES.format(hook="input"))
        with capturing((address,)) as capture:
            client.sendall(b"late")
            wait_for(lambda: bool(capture.take()), WITHIN_S, "the packet")
            with hosts.client.entered():
                hosts.client.run("nft", DROPPING_RULES.format(hook="output"))
            packets = capture.take()
        hosts.source.run("nft", "delete table inet silence")
        deliver(packets, (other,))
        # Delivery is synchronous: the packet would have arrived by now.
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.recv(100)


def test_only_packets_that_begin_connections_of_the_given_address_or_have_data_are_captured(
    hosts: Lan, address: HostAddress
) -> None:
    """Not captured are packets from the source, other packets without data, and packets for its other addresses."""
    other = parse_address(next(text for text in ADDRESSES if text[0] != str(address)[0]))
    with hosts.source.entered(), capturing((address,)) as capture:
        for used, expected in ((other, 0), (address, 2)):
            server, client = connect(hosts, used)
            with closing(server), closing(client):
                server.sendall(b"answer")
                assert client.recv(100) == b"answer"
                client.sendall(b"request")
                assert server.recv(100) == b"request"
                assert len(capture.take()) == expected


def test_reading_captured_packets_ends_although_a_sender_never_stops(hosts: Lan) -> None:
    """The tree is frozen until all is read."""
    address = parse_address(ADDRESSES[0])
    with hosts.client.entered():
        flood = subprocess.Popen([sys.executable, "-c", FLOODING_PROGRAM], stdin=subprocess.DEVNULL)
    try:
        with hosts.source.entered(), capturing((address,)) as capture:
            wait_for(lambda: len(capture.take()) == MOST_PACKETS, WITHIN_S, "the flood")
            for _ in range(20):
                packets = capture.take()
                assert len(packets) == MOST_PACKETS
                assert flood.poll() is None
    finally:
        flood.kill()
        flood.wait()
