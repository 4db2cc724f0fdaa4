"""Where the keepers of trees are. Light to load: every dump looks there."""

from __future__ import annotations

from pathlib import Path

from crckpt.host import proc
from crckpt.host.disk.files import runtime_directory


def place_of_keeper(root: proc.Process) -> Path:
    """The socket of this process's keeper. It is left behind if the keeper is killed."""
    return directory_of_keepers() / f"{root.pid}-{root.start}"


def directory_of_keepers() -> Path:
    """Where the sockets are."""
    return runtime_directory() / "keepers"
