"""TCP sockets that check segments with a key, as the kernel lists them."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from crckpt.host.observe.sock_diag import find_sockets_with_keys

TCP_MD5SIG = 14


def test_listener_with_a_md5_key_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as signed, socket.create_server(("127.0.0.1", 0)) as plain:
        # struct tcp_md5sig: sockaddr_storage, flags, prefix length, key length, interface, key. Source: linux/tcp.h.
        address = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton("127.0.0.1")).ljust(128, b"\0")
        try:
            signed.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG, address + struct.pack("=BBHi80s", 0, 0, 3, 0, b"key"))
        except OSError as error:
            pytest.skip(f"this kernel has no signed TCP: {error.strerror}")
        found = find_sockets_with_keys()
        if not found and os.geteuid() != 0:
            pytest.skip("the kernel lists keys only for root")
        assert os.fstat(signed.fileno()).st_ino in found
        assert os.fstat(plain.fileno()).st_ino not in found
