"""A program of a user that listens on a unix socket; with `peer` it is also connected to another user's socket.

`unix_owner.py WORKDIR [peer]` listens on the abstract name `crckpt-owner-` and its PID.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Final

from selfcheck import Program

USER, GROUP, OTHER = 1234, 2345, 3456
KEPT: Final[list[socket.socket]] = []


def main() -> None:
    """Become the user, and count."""
    # The directory above is root's alone: once this is a user's program, it finds its own as the current one only.
    os.chdir(sys.argv[1])
    os.chown(".", USER, GROUP)
    os.setgroups([])
    if "peer" in sys.argv[2:]:
        os.seteuid(OTHER)
        KEPT.extend(socket.socketpair())
        os.seteuid(0)
    os.setresgid(GROUP, GROUP, GROUP)
    os.setresuid(USER, USER, USER)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0crckpt-owner-{os.getpid()}")
    listener.listen(7)

    def step() -> None:
        if Path().stat().st_nlink == 0:
            os._exit(0)

    Program(Path()).run(step)


if __name__ == "__main__":
    main()
