"""The sockets on which keepers listen. Light to load: every dump looks there before it starts CRIU."""

from __future__ import annotations

from pathlib import Path

from crckpt.host import proc
from crckpt.host.disk.files import runtime_directory


def keeper_socket(root: proc.Process) -> Path:
    """Return the socket of this process's keeper. It stays behind if the keeper is killed."""
    return keeper_directory() / f"{root.pid}-{root.start}"


def keeper_directory() -> Path:
    """Return the directory of all keepers' sockets."""
    return runtime_directory() / "keepers"
