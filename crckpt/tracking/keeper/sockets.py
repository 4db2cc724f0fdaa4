"""The sockets on which keepers listen. Light to load: every dump looks there before it starts CRIU."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from crckpt.host import proc
from crckpt.host.disk.files import runtime_directory

ENDED_MARK: Final = ".ended"


def keeper_socket(root: proc.Process) -> Path:
    """Return the socket of this process's keeper. It stays behind if the keeper is killed."""
    return keeper_directory() / root.identity.name


def ended_mark(root: proc.Process) -> Path:
    """Return the file that shows that the keeper of this process was ended on request."""
    return keeper_directory() / f"{root.identity.name}{ENDED_MARK}"


def keeper_directory() -> Path:
    """Return the directory of all keepers' sockets."""
    return runtime_directory() / "keepers"
