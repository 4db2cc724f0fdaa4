"""State that a restore loses of a socket, and sockets whose data is not read."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from crckpt.host.observe.socket_kinds import find_losses

SO_PEEK_OFF = 42
SEQPACKET = (socket.AF_UNIX, socket.SOCK_SEQPACKET)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_pending_connections_do_not_count_as_messages(tmp_path: Path, is_frozen: bool) -> None:
    with socket.socket(*SEQPACKET) as listener, socket.socket(*SEQPACKET) as client:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        client.connect(str(tmp_path / "socket"))
        assert find_losses(listener, *SEQPACKET, is_frozen=is_frozen) == ()
        assert listener.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF) == -1
