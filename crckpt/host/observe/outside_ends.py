"""Find what the unix sockets of a live tree are connected to outside it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.observe.unix_sockets import LiveUnixSocket, read_unix_sockets

# In the fdinfo of a unix socket (Linux 5.10): descriptors that were sent and wait there.
_IN_FLIGHT: Final = re.compile(r"^scm_fds:\s*[1-9]", re.MULTILINE)


class OutsideEnd(Struct, frozen=True):
    """One end of a unix connection whose other end is outside the tree. That is bound to `name`, if not empty.

    `is_waiting`: it is a listener that has not accepted the connection, and its client is outside, has gone, or has
    sent something.
    """

    pid: int
    fd: int
    name: str
    is_waiting: bool = False


def find_names(descriptors: tuple[proc.Descriptor, ...]) -> tuple[str, ...]:
    """Find what the unix sockets of the tree are bound to, as far as they are in our network namespace."""
    with suppress(OSError):
        known = read_unix_sockets()
        return tuple(known[inode].name for inode in sockets_by_inode(descriptors) if inode in known)
    return ()


def find_outside_ends(root: proc.Process, descriptors: tuple[proc.Descriptor, ...]) -> tuple[OutsideEnd, ...]:
    """Find connections to the outside that existed before and after we read the descriptors: the tree still runs."""
    try:
        before = read_unix_sockets()
        if not any(_ends(before, descriptors)):
            return ()
        descriptors = read_descriptors(proc.read_tree(root))
        stayed = dict(before.items() & read_unix_sockets().items())
    except OSError:  # a kernel without unix_diag: CRIU needs it, too, and says so
        return ()
    # CRIU saves descriptors that wait in a socket of the tree: the other end may be there.
    return () if any(_IN_FLIGHT.search(found.info) for found in descriptors) else tuple(_ends(stayed, descriptors))


def _ends(known: dict[int, LiveUnixSocket], descriptors: tuple[proc.Descriptor, ...]) -> Iterator[OutsideEnd]:
    """Find ends of connections, and of datagram sockets whose peer has no name: CRIU finds a named peer again."""
    inside = sockets_by_inode(descriptors)
    for inode, found in reversed(inside.items()):
        end = known.get(inode)
        if end is not None and any(client not in inside for client in end.clients):
            yield OutsideEnd(found.pid, found.fd, "", is_waiting=True)
        if end is not None and end.peer and end.peer not in inside:
            other = known.get(end.peer)
            if end.kind == socket.SOCK_DGRAM and (other is None or other.name):
                continue
            yield OutsideEnd(found.pid, found.fd, other.name if other else "")


def sockets_by_inode(descriptors: tuple[proc.Descriptor, ...]) -> dict[int, proc.Descriptor]:
    """Inode of each socket -> its first descriptor."""
    return {found.socket_inode: found for found in reversed(descriptors) if found.socket_inode}


def read_descriptors(tree: proc.Tree) -> tuple[proc.Descriptor, ...]:
    """Read the descriptors of all processes of a tree."""
    return tuple(found for pid in tree.pids for found in proc.descriptors(pid))
