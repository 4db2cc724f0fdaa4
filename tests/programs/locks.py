"""File locks of all kinds, in two processes, on WORKDIR/{flock,posix,ofd,child}.lock."""

import fcntl
import os
import struct
import sys
from pathlib import Path
from typing import NoReturn

from selfcheck import Program, fork

START, LENGTH = 100, 50


def main() -> None:
    """Take the locks and keep them."""
    workdir = Path(sys.argv[1])
    fds = {name: os.open(workdir / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600) for name in ("flock", "posix", "ofd")}
    fcntl.flock(fds["flock"], fcntl.LOCK_EX)
    fcntl.lockf(fds["posix"], fcntl.LOCK_EX, LENGTH, START)
    fcntl.fcntl(fds["ofd"], fcntl.F_OFD_SETLK, ofd_lock(fcntl.F_WRLCK))
    fork(lambda: child(workdir))
    Program(workdir, parts=("child",)).run(lambda: None)


def child(workdir: Path) -> NoReturn:
    """Hold a shared lock on a range of its own file."""
    fd = os.open(workdir / "child.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.lockf(fd, fcntl.LOCK_SH, LENGTH, START)
    Program(workdir, "child").run(lambda: None)


def ofd_lock(kind: int) -> bytes:
    """Return `struct flock` for the range that is locked; `kind` is F_RDLCK or F_WRLCK."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, START, LENGTH, 0)


if __name__ == "__main__":
    main()
