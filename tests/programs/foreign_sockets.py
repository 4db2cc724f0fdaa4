"""Sockets of another network namespace than that of the process that has them."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from oddities import LIBC, checked

CLONE_NEWNET: Final = 0x40000000  # linux/sched.h


def foreign_socket(_: Path) -> socket.socket:
    return abroad(lambda: listening(socket.AF_INET, ("127.0.0.1", 0)))


def foreign_unix_socket(_: Path) -> socket.socket:
    return abroad(lambda: listening(socket.AF_UNIX, f"\0blocked-{os.getpid()}"))


def foreign_datagrams(_: Path) -> socket.socket:
    return abroad(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


def abroad(opened: Callable[[], socket.socket]) -> socket.socket:
    """Enter a network namespace that no other process is in."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    checked(LIBC.unshare(CLONE_NEWNET))
    found = opened()
    checked(LIBC.setns(home, CLONE_NEWNET))
    os.close(home)
    return found


def listening(family: int, address: tuple[str, int] | str) -> socket.socket:
    found = socket.socket(family)
    found.bind(address)
    found.listen()
    return found
