"""Rows of the kernel's tables of sockets: of sockets of ours."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from crckpt.host.proc.net import InetTable, read_inet, read_unix


@pytest.mark.parametrize(
    ("table", "family", "host", "title"),
    [("tcp", socket.AF_INET, "127.0.0.1", "127.0.0.1"), ("tcp6", socket.AF_INET6, "::1", "[::1]")],
)
def test_tcp_connection_is_read(table: InetTable, family: socket.AddressFamily, host: str, title: str) -> None:
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"no socket on {host}: {error}")
    port = listener.getsockname()[1]
    with listener, socket.create_connection((host, port)) as client:
        rows = {row.inode: row for row in read_inet(os.getpid(), table)}
        listening, connected = (rows[os.fstat(each.fileno()).st_ino] for each in (listener, client))
    assert (listening.local, listening.state, listening.has_peer) == (f"{title}:{port}", "LISTEN", False)
    assert listening.unread == 1, "a connection waits to be accepted"
    assert (connected.remote, connected.state, connected.has_peer) == (f"{title}:{port}", "ESTABLISHED", True)


def test_socket_name_ends_at_a_line_feed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "a\nb"))
        (row,) = (row for row in read_unix(os.getpid()) if row.inode == os.fstat(bound.fileno()).st_ino)
    assert (row.kind, row.name) == (socket.SOCK_DGRAM, str(tmp_path / "a"))


def test_ended_process_has_no_sockets() -> None:
    assert list(read_unix(2**22 + 1)) == []
    assert list(read_inet(2**22 + 1, "tcp")) == []
