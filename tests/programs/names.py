"""A program with names that a restore makes again: of unix and netlink sockets, and of what it watches.

Usage: names.py WORKDIR INTERFACE. A UDP socket is bound to the interface. The program makes WORKDIR/run/stream,
WORKDIR/relative (bound as `relative`), an abstract name, which it writes to WORKDIR/abstract, and a netlink port,
written to WORKDIR/port. It is connected to WORKDIR/log, a datagram socket of another program, and watches
WORKDIR/inotify and WORKDIR/fanotify.
"""

import ctypes
import os
import socket
import sys
from pathlib import Path

from selfcheck import Program
from system_calls import LIBC, watch

AT_FDCWD, FAN_MARK_ADD, FAN_MODIFY, IN_MODIFY = -100, 1, 2, 2


def main() -> None:
    """Make all of it, and count."""
    workdir = Path(sys.argv[1])
    os.chdir(workdir)
    for directory in ("run", "inotify", "fanotify"):
        (workdir / directory).mkdir()
    abstract = f"crckpt-test-{os.getpid()}"
    bound = [
        _bound(socket.SOCK_STREAM, str(workdir / "run/stream")),
        _bound(socket.SOCK_DGRAM, "relative"),
        _bound(socket.SOCK_STREAM, f"\0{abstract}"),
    ]
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    connected.connect(str(workdir / "log"))
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    netlink.bind((0, 0))
    port, _ = netlink.getsockname()
    on_interface = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    on_interface.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(sys.argv[2]))
    (workdir / "abstract").write_text(abstract)
    (workdir / "port").write_text(str(port))
    watch(workdir / "inotify", IN_MODIFY)
    group, path = LIBC.fanotify_init(0, os.O_RDONLY), os.fsencode(workdir / "fanotify")
    assert LIBC.fanotify_mark(group, FAN_MARK_ADD, ctypes.c_uint64(FAN_MODIFY), AT_FDCWD, path) == 0
    program = Program(workdir)
    program.run(lambda: program.expect(len(bound) == 3, "a socket is gone"))


def _bound(kind: int, name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(name)
    if kind == socket.SOCK_STREAM:
        made.listen()
    return made


if __name__ == "__main__":
    main()
