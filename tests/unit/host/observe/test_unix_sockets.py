"""The peer of a unix socket."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import pytest

from crckpt.host.observe.sock_diag import read_unix_sockets
from crckpt.host.proc.net import LiveUnixSocket


def seen(found: socket.socket) -> LiveUnixSocket:
    return read_unix_sockets()[inode(found)]


def inode(found: socket.socket) -> int:
    return os.fstat(found.fileno()).st_ino


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
@pytest.mark.parametrize("abstract", [False, True])
def test_both_ends_of_a_unix_connection_are_found(tmp_path: Path, kind: socket.SocketKind, abstract: bool) -> None:
    name = f"\0crckpt-test-{secrets.token_hex(4)}" if abstract else str(tmp_path / "listener")
    with socket.socket(socket.AF_UNIX, kind) as listener, socket.socket(socket.AF_UNIX, kind) as caller:
        listener.bind(name)
        listener.listen()
        assert seen(listener) == LiveUnixSocket(inode(listener), kind, 0, name.replace("\0", "@"))
        caller.connect(name)
        accepted, _ = listener.accept()
        with accepted:
            assert seen(caller) == LiveUnixSocket(inode(caller), kind, inode(accepted), "", is_connected=True)
            own = LiveUnixSocket(inode(accepted), kind, inode(caller), name.replace("\0", "@"), is_connected=True)
            assert seen(accepted) == own
        assert (seen(caller).peer, seen(caller).is_connected) == (0, True), "the other end has gone"


def test_large_answers_of_the_kernel_are_read() -> None:
    pairs = [socket.socketpair() for _ in range(3000)]
    try:
        known = read_unix_sockets()
        assert all(known[inode(one)].peer == inode(other) for one, other in pairs)
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
