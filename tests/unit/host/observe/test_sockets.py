"""Connections as the kernel shows them, addresses that are free, and the packet filter's tables."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from target_processes import wait_for

from crckpt.host import proc
from crckpt.host.observe import sockets


@pytest.fixture
def loopback() -> Iterator[socket.socket]:
    """A listener on 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_both_ends_of_a_connection_are_found(loopback: socket.socket) -> None:
    assert sockets.tcp_connections([os.getpid()]) == ()
    port = loopback.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client, loopback.accept()[0] as server:
        theirs = client.getsockname()[1]
        assert set(sockets.tcp_connections([os.getpid()])) == {
            sockets.TcpConnection(
                os.getpid(), client.fileno(), f"127.0.0.1:{theirs}", f"127.0.0.1:{port}", "ESTABLISHED"
            ),
            sockets.TcpConnection(
                os.getpid(), server.fileno(), f"127.0.0.1:{port}", f"127.0.0.1:{theirs}", "ESTABLISHED"
            ),
        }
        server.close()
        (left,) = sockets.tcp_connections([os.getpid()])
        assert (left.fd, left.status) == (client.fileno(), "CLOSE_WAIT")


def test_sockets_are_named_by_their_addresses(loopback: socket.socket, tmp_path: Path) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as udp, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
        udp.bind(("127.0.0.1", 0))
        unix.bind(path := f"{tmp_path}/two words")
        titles = sockets.socket_titles(os.getpid())
        assert [titles[os.fstat(found.fileno()).st_ino] for found in (loopback, udp, unix)] == [
            f"tcp 127.0.0.1:{loopback.getsockname()[1]} (listen)",
            f"udp 127.0.0.1:{udp.getsockname()[1]} (close)",
            f"unix datagram {path}",
        ]


def test_ipv6_addresses_are_shown_in_brackets() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("::1", port)):
            (found,) = sockets.tcp_connections([os.getpid()])
            assert found.remote == f"[::1]:{port}"


def test_ended_process_has_no_connections() -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert sockets.tcp_connections([process.pid]) == ()
    assert sockets.unix_datagram_sockets(process.pid) == frozenset()


CONNECTED = """
import os, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with socket.create_server(("127.0.0.1", 4321)) as listener, socket.create_connection(("127.0.0.1", 4321)):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


def test_connections_of_another_network_namespace_are_found() -> None:
    process = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", CONNECTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip("no network namespace can be made here, or `ip` is missing")
        (found,) = sockets.tcp_connections([process.pid])
        assert (found.remote, found.status) == ("127.0.0.1:4321", "ESTABLISHED")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::"])
def test_port_in_use_is_refused(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert sockets.find_bind_refusal(address, port, "listen") == "taken"
        assert sockets.find_bind_refusal(address, port, "connection") is None
    assert sockets.find_bind_refusal(address, port, "listen") is None


@pytest.mark.parametrize("use", ["listen", "datagram", "connection"])
def test_address_that_this_host_does_not_have_is_missing(use: sockets.Binding) -> None:
    assert sockets.find_bind_refusal("192.0.2.1", 80, use) == "missing"
    later = None if use != "connection" else "missing"
    assert sockets.find_bind_refusal("2001:db8::1", 80, use) == later, "an IPv6 address may come later"
    assert sockets.find_bind_refusal("2001:db8::1", 80, use, may_come_later=False) == "missing"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_datagram_port_in_use_is_refused(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as holder:
        holder.bind((address, 0))
        port = holder.getsockname()[1]
        assert sockets.find_bind_refusal(address, port, "datagram") == "taken"
        assert sockets.find_bind_refusal(address, port, "listen") is None
    assert sockets.find_bind_refusal(address, port, "datagram") is None


@pytest.mark.parametrize("shares", [False, True])
def test_port_of_closed_connections_is_free_if_they_shared_it(shares: bool) -> None:
    """CRIU's socket shares its port (SO_REUSEPORT), but must not share it with a server."""
    with socket.socket() as listener, socket.socket() as client:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shares)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        client.connect(("127.0.0.1", port))
        listener.accept()[0].close()
        assert client.recv(1) == b""
        assert sockets.find_bind_refusal("127.0.0.1", port, "listen") == "taken"
    wait_for(lambda: sockets.find_port_release(port) is not None, "the connection to be closed")
    assert sockets.find_bind_refusal("127.0.0.1", port, "listen") == (None if shares else "taken")


def test_port_is_free_although_a_connection_is_in_time_wait(loopback: socket.socket) -> None:
    port = loopback.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        loopback.accept()[0].close()
        loopback.close()
    assert sockets.find_bind_refusal("127.0.0.1", port, "listen") is None, (
        "a connection in TIME_WAIT must not stand against a restore"
    )


def test_port_of_closed_connections_becomes_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # without SO_REUSEADDR
        listener.listen()
        address, port = listener.getsockname()
        with socket.create_connection((address, port)) as client:
            listener.accept()[0].close()
            assert client.recv(1) == b""
            assert sockets.find_port_release(port) is None, "a program listens"
            listener.close()
            client.close()
            assert sockets.find_bind_refusal(address, port, "listen") == "taken"
            # The peer may be in LAST_ACK for a moment.
            wait_for(lambda: sockets.find_port_release(port) is not None, "the connection to be closed")
    seconds = sockets.find_port_release(port)
    assert seconds is not None
    assert 0 < seconds <= 60


@pytest.mark.parametrize(
    "name", ["", "\0plain", "\0with a space", "\0line\nfeed", "\0a\n0: 2 0 0 0002 01 nonsense x", "\0\nA B C D zz F 7"]
)
def test_datagram_sockets_are_found_with_any_name(name: str) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as after,
    ):
        datagram.bind(f"\0{secrets.token_hex(4)}{name}")
        found = sockets.unix_datagram_sockets(os.getpid())
        inodes = [os.fstat(sock.fileno()).st_ino for sock in (datagram, stream, after)]
        assert [inode in found for inode in inodes] == [True, False, True]


def test_connection_has_the_number_of_our_descriptor(loopback: socket.socket) -> None:
    """A socket with two descriptors is one connection."""
    port = loopback.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client, client.dup() as again:
        (found,) = sockets.tcp_connections([os.getpid()])
        assert found.fd in (client.fileno(), again.fileno())
        assert {entry.fd for entry in proc.descriptors(os.getpid())} >= {client.fileno(), again.fileno()}
