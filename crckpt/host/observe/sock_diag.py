"""Ask the kernel for unix sockets, and for TCP sockets with keys; find out whether names are free or in use.

And which files of unix sockets were renamed after bind(2). No socket is made, and no server gets a connection. Programs
rename so that no client sees a socket that does not listen yet; the kernel still reports the first name
(getsockname(2)). Source: sock_diag(7), SIOCUNIXFILE of linux/un.h.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from crckpt.host.disk.checked_files import find_automounts, held
from crckpt.host.opened import opened
from crckpt.host.proc.net import LiveUnixSocket
from crckpt.host.syscalls import netlink
from crckpt.host.syscalls.openat2 import RENAME_EXCHANGE, RENAME_NOREPLACE, open_without_links, rename_within

# linux/{netlink,sock_diag}.h. struct nlattr: length, type.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_ATTRIBUTE: Final = struct.Struct("=HH")

# linux/inet_diag.h: INET_DIAG_INFO, INET_DIAG_MD5SIG (Linux 4.14)
_INFO, _MD5SIG = 2, 18
# struct inet_diag_req_v2: family, protocol, extensions, states, an id of zeros. The inode is the last word of struct
# inet_diag_msg.
_TCP_REQUEST: Final = struct.Struct("=BBBxI48x")
_TCP_MESSAGE: Final = struct.Struct("=68xI")

# linux/unix_diag.h
_NAME, _PEER, _ICONS, _QUEUES = 0, 2, 3, 4
_SHOWN: Final = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4  # UDIAG_SHOW_NAME, _PEER, _ICONS, _RQLEN
# struct unix_diag_req: family, protocol, padding, states, inode, show, cookie of two words. struct unix_diag_msg:
# family, type, state, inode, cookie. struct unix_diag_rqlen: received, sent.
_UNIX_REQUEST: Final = struct.Struct("=BBHIIIII")
_UNIX_MESSAGE: Final = struct.Struct("=BBBxIII")
_QUEUE_LENGTHS: Final = struct.Struct("=II")
_ESTABLISHED: Final = 1  # include/net/tcp_states.h
_SIOCUNIXFILE: Final = 0x89E0  # linux/un.h

NameRefusal = Literal["taken", "occupied", "missing", "unwritable", "linked"]
"""Why a socket cannot be bound to a name: another socket is, another file is there, its directory is missing, cannot be
written, or is reached by a link that is not followed."""

# Answers of connect(2) for a name to which a socket is bound: of another type, or with another peer.
_BOUND: Final = (errno.EPROTOTYPE, errno.EPERM)


def ask_for_sockets(request: bytes) -> Iterator[memoryview]:
    """Request all sockets of a kind in our network namespace; yield a message for each.

    Raises OSError if the kernel refuses; ENOENT if the module for such sockets is missing.
    """
    return netlink.ask(_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, netlink.LIST, request)


def _attributes(rest: memoryview) -> Iterator[tuple[int, memoryview]]:
    while len(rest) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(rest)
        yield kind, rest[_ATTRIBUTE.size : size]
        # A length of 0 would never end.
        rest = rest[max(netlink.align(size), _ATTRIBUTE.size) :]


def find_sockets_with_keys() -> frozenset[int]:
    """Find the inodes of TCP sockets in our network namespace that check segments with a key (TCP_MD5SIG).

    None if the kernel does not list keys, as without CAP_NET_ADMIN.
    """
    found: set[int] = set()
    with suppress(OSError):
        for family in (socket.AF_INET, socket.AF_INET6):
            # The kernel lists keys only with the state of the connection.
            request = _TCP_REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0xFFFFFFFF)
            for message in ask_for_sockets(request):
                if any(kind == _MD5SIG for kind, _ in _attributes(message[_TCP_MESSAGE.size :])):
                    found.add(_TCP_MESSAGE.unpack_from(message)[0])
    return frozenset(found)


def read_unix_sockets() -> dict[int, LiveUnixSocket]:
    """Read all unix sockets in our network namespace, by inode. Raises OSError if the kernel has no unix_diag."""
    found: list[LiveUnixSocket] = []
    sending: set[int] = set()  # what they have sent was not read by their peers
    for message in ask_for_sockets(_UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOWN, 0, 0)):
        _, kind, state, inode, *_ = _UNIX_MESSAGE.unpack_from(message)
        attributes = dict(_attributes(message[_UNIX_MESSAGE.size :]))
        # A path ends with a zero byte, an abstract name begins with one.
        name = bytes(attributes.get(_NAME, b"")).rstrip(b"\0").replace(b"\0", b"@", 1)
        peer = struct.unpack("=I", attributes[_PEER])[0] if _PEER in attributes else 0
        clients = tuple(memoryview(bytes(attributes.get(_ICONS, b""))).cast("I"))
        _, sent = _QUEUE_LENGTHS.unpack(attributes.get(_QUEUES, bytes(_QUEUE_LENGTHS.size)))
        found.append(LiveUnixSocket(inode, kind, peer, os.fsdecode(name), state == _ESTABLISHED, clients))
        sending |= {inode} if sent else set()
    return {
        each.inode: replace(each, clients=tuple(0 if one in sending else one for one in each.clients))
        if each.clients
        else each
        for each in found
    }


def opened_file(held: int | socket.socket) -> AbstractContextManager[int]:
    """The file of a bound unix socket, opened with O_PATH. Raises OSError."""
    return opened(fcntl.ioctl(held, _SIOCUNIXFILE))


class UnixNames:
    """The names of unix sockets on this host, and in our network namespace."""

    def __init__(self) -> None:
        self._automounts = find_automounts()
        self._abstract: set[tuple[int, str]] = set()
        with suppress(OSError):  # a kernel without unix_diag, which CRIU needs, too
            self._abstract = {(found.kind, _plain(found.name)) for found in read_unix_sockets().values()}

    def find_path_refusal(self, path: str) -> NameRefusal | None:
        """Find out why a socket could not be bound to an absolute path; None if it could."""
        directory, _, name = path.rpartition("/")
        try:
            with held(directory or "/", self._automounts) as above:
                if not stat.S_ISDIR(above.status.st_mode):
                    return "missing"
                if above.is_redirected or above.is_unmounted:
                    return "linked" if above.is_redirected else None
                try:
                    file = os.open(f"{above.link}/{name}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                except FileNotFoundError:
                    return None if os.access(above.link, os.W_OK | os.X_OK) else "unwritable"
                with opened(file):
                    if not stat.S_ISSOCK(os.fstat(file).st_mode):
                        return "occupied"
                    return "taken" if is_bound(file) else None
        except (FileNotFoundError, NotADirectoryError):
            return "missing"
        except (OSError, ValueError):
            return None

    def is_abstract_bound(self, kind: int, name: str) -> bool:
        """Return whether a socket of this kind, of socket(2), is bound to the abstract name, written as `@name`."""
        return (kind, _plain(name)) in self._abstract


def is_bound(file: int) -> bool:
    """Return whether a socket is bound to this file, which is open with O_PATH."""
    # A stream server answers EPROTOTYPE to a datagram socket, and notices nothing. A datagram server does not notice
    # a connect(2) at all.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as trial:
        return trial.connect_ex(f"/proc/self/fd/{file}") in (0, *_BOUND)


def _plain(name: str) -> str:
    """Return an abstract name in the one spelling in which images and the kernel's answers can be compared."""
    return name.replace("\0", "@").rstrip("@")


class RenamedSocket(Struct, frozen=True):
    """A socket that was bound as `name`, which is not its file's any more. `new` is that, if in the same directory."""

    name: str
    new: str = ""


def find_renamed(held: socket.socket) -> RenamedSocket | None:
    """Find out whether the file of a unix socket was renamed, or linked to another name and removed under the first.

    None also if the kernel does not tell, or nothing connects to it by its name.
    """
    name = held.getsockname()
    if not name or isinstance(name, bytes):  # abstract names are bytes
        return None
    with suppress(OSError):
        held.getpeername()
        if held.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) != socket.SOCK_DGRAM:
            return None  # CRIU binds no connection, which has the name of the socket that accepted it
    with suppress(OSError), opened_file(held) as file:
        found, link = os.fstat(file), str(Path(f"/proc/self/fd/{file}").readlink())
        bound = Path(name)
        if not found.st_nlink or (bound.is_absolute() and _is(bound, found)):
            return None
        if not bound.is_absolute():
            return None if link == name or link.endswith(f"/{name}") else RenamedSocket(name)
        new = Path(link).name
        return RenamedSocket(name, new if _is(bound.with_name(new), found) else "")
    return None


def rename_again(held: socket.socket, new: str) -> None:
    """Give the file of a bound socket a new name in its directory, in the place of a socket that nobody uses.

    Raises OSError, FileExistsError if anything else is there. The directory may be that of another user, who can
    exchange each file in it at any moment.
    """
    if "/" in new or new in ("", ".", ".."):
        raise ValueError("it is no file name")
    with opened_file(held) as file:
        path = Path(f"/proc/self/fd/{file}").readlink()
        with opened(open_without_links(str(path.parent), os.O_PATH | os.O_DIRECTORY)) as directory:
            _refuse_other(path.name, directory, os.fstat(file))
            try:
                rename_within(directory, path.name, new, RENAME_NOREPLACE)
            except FileExistsError:
                # While it is open, no other file gets its inode.
                with opened(os.open(new, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as left:
                    found = os.fstat(left)
                    # In a directory like /tmp another user may have a file of that name.
                    is_owners = found.st_uid == os.fstat(file).st_uid
                    if not stat.S_ISSOCK(found.st_mode) or not is_owners or is_bound(left):
                        raise FileExistsError(0, f"another file has the name {new}") from None
                    rename_within(directory, path.name, new, RENAME_EXCHANGE)
                    try:
                        _refuse_other(path.name, directory, found)
                    except OSError:
                        rename_within(directory, path.name, new, RENAME_EXCHANGE)
                        raise
                    os.unlink(path.name, dir_fd=directory)


def _refuse_other(name: str, directory: int, wanted: os.stat_result) -> None:
    if not os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), wanted):
        raise FileNotFoundError(errno.ENOENT, "somebody has replaced it", name)


def _is(path: Path, found: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.lstat(), found)
    return False
