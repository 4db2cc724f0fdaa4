"""Find sockets of a live tree that are less secure after a restore.

CRIU loses the keys of TCP (TCP_MD5SIG). It makes all sockets as root, so that the peer of a connected unix socket seems
to be root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from crckpt.host.observe.socket_kinds import SocketKind
from crckpt.host.observe.tcp_keys import find_sockets_with_keys
from crckpt.host.observe.unix_sockets import read_unix_sockets


class WeakSocket(Struct, frozen=True):
    """A socket with keys, or with a peer of `user` that is in the tree, too."""

    pid: int
    fd: int
    what: Literal["keys", "peer"]
    user: int = 0


def find_weak_sockets(
    kinds: Iterable[SocketKind], inodes: Mapping[tuple[int, int], int], users: Mapping[int, int]
) -> Iterator[WeakSocket]:
    """Find weak sockets among `kinds`. `inodes` are all sockets of the tree by PID and descriptor, `users` its users by
    PID.
    """
    # Read the kernel's tables only if there may be such a socket.
    found = tuple(kinds)
    signed = [held for held in found if held.is_tcp and held.uses_option_memory]
    with_keys = find_sockets_with_keys() if signed else frozenset()
    yield from (WeakSocket(held.pid, held.fd, "keys") for held in signed if inodes[held.pid, held.fd] in with_keys)
    # Nothing is lost where the peer is root's, or of the socket's own user.
    strange = [held for held in found if held.peer_user not in (0, users.get(held.pid, held.peer_user))]
    known, inside = {}, frozenset(inodes.values())
    if strange:
        with suppress(OSError):
            known = read_unix_sockets()
    for held in strange:
        end = known.get(inodes[held.pid, held.fd])
        if end is not None and end.peer in inside:
            yield WeakSocket(held.pid, held.fd, "peer", held.peer_user)
