"""Kinds of sockets, read from descriptors of another process."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from crckpt.host.observe.socket_kinds import SocketKind, read_socket_kinds, unread_bytes


def test_family_type_and_protocol_of_sockets_are_read(tmp_path: Path) -> None:
    made = [
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    ]
    before = len(list(Path("/proc/self/fd").iterdir()))
    with (tmp_path / "file").open("w") as file:
        wanted = [file.fileno(), 10**6, *(found.fileno() for found in made)]
        output = list(read_socket_kinds(os.getpid(), wanted))
    here = Path("/proc/self/ns/net").stat().st_ino
    kinds = (
        (socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_UDP),
        (socket.AF_UNIX, socket.SOCK_SEQPACKET, 0),
        (socket.AF_NETLINK, socket.SOCK_RAW, 0),
    )
    assert output == [
        SocketKind(os.getpid(), found.fileno(), *kind, namespace=here) for found, kind in zip(made, kinds, strict=True)
    ], "what is no socket, or not there, is left out"
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "what was borrowed is given back"
    for found in made:
        found.close()


def test_ended_process_has_no_sockets() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert list(read_socket_kinds(child, (0, 1, 2))) == []


def test_unread_bytes_of_a_udp_socket_are_counted() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as receiver, socket.socket(type=socket.SOCK_DGRAM) as sender:
        receiver.bind(("127.0.0.1", 0))
        assert unread_bytes(os.getpid(), receiver.fileno()) == 0
        sender.sendto(b"hello", receiver.getsockname())
        assert unread_bytes(os.getpid(), receiver.fileno()) == 5
        assert receiver.recv(9) == b"hello", "it was only looked at"
    assert unread_bytes(os.getpid(), 10**6) == 0
