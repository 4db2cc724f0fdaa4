"""Sockets that are less secure after a restore: without their keys, or with root as their peer."""

from __future__ import annotations

import os
import socket

import pytest
from msgspec.structs import replace

from crckpt.host.observe.sock_diag import read_unix_sockets
from crckpt.host.observe.socket_kinds import SocketKind
from crckpt.host.observe.sockets import WeakSocket, find_weak_sockets

KIND = SocketKind(100, 3, socket.AF_UNIX, socket.SOCK_STREAM, 0, peer_user=33)
USERS = {100: 1000, 101: 33}


@pytest.mark.parametrize(
    ("peer_user", "is_weak"), [(33, True), (1000, False), (0, False)], ids=["another's", "its own", "root's"]
)
def test_socket_with_a_peer_of_another_user_is_weak_unless_it_is_root(peer_user: int, is_weak: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inodes = {(100, 3): os.fstat(ours.fileno()).st_ino, (101, 4): os.fstat(theirs.fileno()).st_ino}
        if read_unix_sockets()[inodes[100, 3]].peer != inodes[101, 4]:
            pytest.skip("this kernel does not tell the peers of unix sockets")
        found = list(find_weak_sockets([replace(KIND, peer_user=peer_user)], inodes, USERS))
    assert found == [WeakSocket(100, 3, "peer", peer_user)] * is_weak


def test_unix_socket_with_a_peer_outside_the_tree_is_not_weak() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inodes = {(100, 3): os.fstat(ours.fileno()).st_ino}
        assert list(find_weak_sockets([KIND], inodes, USERS)) == []


def test_tcp_socket_without_signing_keys_is_not_weak() -> None:
    signed = SocketKind(100, 3, socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        inodes = {(100, 3): os.fstat(listener.fileno()).st_ino}
        assert list(find_weak_sockets([signed], inodes, USERS)) == []


@pytest.mark.parametrize(
    ("maker", "is_weak"), [(1000, False), (33, True), (0, False)], ids=["the first's", "another's", "root's"]
)
def test_shared_socket_is_made_by_the_process_with_the_lowest_pid(maker: int, is_weak: bool) -> None:
    shared = SocketKind(101, 4, socket.AF_INET, socket.SOCK_DGRAM, 0, maker=maker)
    found = list(find_weak_sockets([shared], {(101, 4): 7, (100, 3): 7}, USERS))
    assert found == [WeakSocket(101, 4, "maker", maker)] * is_weak
