"""Kinds for blocked.py: what CRIU saves, and does not restore."""

import fcntl
import os
import struct
import threading
import time
from pathlib import Path
from typing import Final

from oddities import outside

F_SETOWN_EX: Final = 15
F_OWNER_TID, F_OWNER_PID, F_OWNER_PGRP = range(3)


def owned(kind: int, owner: int) -> tuple[int, int]:
    """A pipe whose signals go there."""
    pipe = os.pipe()
    fcntl.fcntl(pipe[0], F_SETOWN_EX, struct.pack("=2i", kind, owner))
    return pipe


def owner_thread(_: Path) -> object:
    """A pipe whose signals go to another thread than the first."""
    thread = threading.Thread(target=time.sleep, args=(100_000,), daemon=True)
    thread.start()
    return owned(F_OWNER_TID, thread.native_id or 0)


def owner_outside(workdir: Path) -> object:
    """A pipe whose signals go to a process outside the tree, or to its group."""
    other = outside(workdir, list)
    (workdir / "outside").write_text(str(other))
    return owned(F_OWNER_PID, other), owned(F_OWNER_PGRP, other)


def owner_inside(_: Path) -> object:
    """Pipes whose signals go to the process itself."""
    return [owned(*owner) for owner in ((0, os.getpid()), (F_OWNER_PID, os.getpid()), (F_OWNER_PGRP, os.getpgrp()))]
