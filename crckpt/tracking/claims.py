"""Claim the processes that a tracker tracks: two trackers that reset a process's bits would each lose them."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host.disk.own_files import make_runtime_directory, runtime_directory
from crckpt.host.proc import Identity

# The kernel's PID_MAX_LIMIT. The other bits of an offset hold centuries of clock ticks.
_PID_BITS: Final = 22
_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, length, pid


class Claims:
    """The claims of one tracker: for each process a locked byte of one file. The locks end with this process."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is the file, if not the host's own. Raises OSError."""
        if path is None:
            path = runtime_directory() / "tracked"
            make_runtime_directory(path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def claim(self, process: Identity) -> bool:
        """Claim a process. Return whether it is ours now: not if another tracker has it, even one in this process."""
        with suppress(BlockingIOError, PermissionError):
            self._set(fcntl.F_WRLCK, process)
            return True
        return False

    def give_up(self, process: Identity) -> None:
        self._set(fcntl.F_UNLCK, process)

    def close(self) -> None:
        """Give up all claims."""
        os.close(self._file)

    def _set(self, kind: int, process: Identity) -> None:
        # A claim may outlive its process, whose PID is used again: so the start time is part of the offset.
        place = process.start << _PID_BITS | process.pid
        # Locks of the open file description: a process loses its own locks when it closes any descriptor of the file.
        # Their l_pid must be 0 (fcntl(2)).
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, place, 1, 0))
