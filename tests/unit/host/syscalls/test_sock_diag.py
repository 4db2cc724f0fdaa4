"""The kernel lists its sockets, or gives an error."""

from __future__ import annotations

import socket
import struct

import pytest

from crckpt.host.observe.sock_diag import ask_for_sockets
from crckpt.host.syscalls.netlink import align

TCP = struct.Struct("=BBBxI48x")


def test_kernel_lists_our_listening_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        request = TCP.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 1 << 10)
        # struct inet_diag_msg: family, state, timer, retransmissions; source port in network order.
        ports = [struct.unpack_from(">H", message, 4)[0] for message in ask_for_sockets(request)]
        assert port in ports


def test_socket_listing_that_the_kernel_refuses_is_an_error() -> None:
    with pytest.raises(OSError, match=r"No such file|Invalid argument"):
        list(ask_for_sockets(TCP.pack(255, 0, 0, 0xFFFFFFFF)))


@pytest.mark.parametrize(("size", "aligned"), [(0, 0), (1, 4), (4, 4), (5, 8)])
def test_netlink_messages_are_aligned(size: int, aligned: int) -> None:
    assert align(size) == aligned
