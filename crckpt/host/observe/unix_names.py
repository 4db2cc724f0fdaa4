"""Find out whether names of unix sockets are free or in use. No socket is made, and no server gets a connection."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from typing import Final, Literal

from crckpt.host.disk.untrusted_path import find_automounts, held
from crckpt.host.observe.unix_sockets import read_unix_sockets

NameRefusal = Literal["taken", "occupied", "missing", "unwritable", "linked"]
"""Why a socket cannot be bound to a name: another socket is, another file is there, its directory is missing, cannot be
written, or is reached by a link that is not followed."""

# Answers of connect(2) for a name to which a socket is bound: of another type, or with another peer.
_BOUND: Final = (errno.EPROTOTYPE, errno.EPERM)


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
                try:
                    if not stat.S_ISSOCK(os.fstat(file).st_mode):
                        return "occupied"
                    return "taken" if is_bound(file) else None
                finally:
                    os.close(file)
        except (FileNotFoundError, NotADirectoryError):
            return "missing"
        except (OSError, ValueError):
            return None

    def is_path_bound(self, path: str) -> bool:
        """Return whether a socket that some process has open is bound to an absolute path."""
        return self.find_path_refusal(path) == "taken"

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
