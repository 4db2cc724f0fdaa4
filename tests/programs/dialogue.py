"""A counter that a TCP connection moves: each number goes to the server, a child, and counts when it has come back.

`--hold KIND` opens something that CRIU cannot save: `io_uring`, `userfaultfd`, a socket (`vsock`, `mptcp`), or `unix`,
a stream to WORKDIR/peer.sock, where another program listens. Or something that it saves without the unread data: `udp`,
`inotify`.
"""

import argparse
import ctypes
import os
import socket
import struct
from pathlib import Path
from typing import Final, NoReturn

from selfcheck import Program, fork

NUMBER: Final = struct.Struct("<Q")
ANSWER_S: Final = 30.0
# asm/unistd_64.h; from number 424 on, all machines count alike.
IO_URING_SETUP: Final = 425
USERFAULTFD: Final = {"x86_64": 323, "aarch64": 282}
ENTRIES: Final = 8
LIBC: Final = ctypes.CDLL(None, use_errno=True)
IN_CREATE: Final = 0x100  # linux/inotify.h
PARAMETERS_BYTES: Final = 120  # struct io_uring_params, linux/io_uring.h


def main() -> None:
    """Start the server and talk to it, one number a tick."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--mib", type=float, default=4)
    parser.add_argument("--hold", choices=("unix", "io_uring", "userfaultfd", "vsock", "mptcp", "udp", "inotify"))
    given = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    fork(lambda: serve(listener))
    line = socket.create_connection(listener.getsockname())
    listener.close()
    line.settimeout(ANSWER_S)
    held = hold(given.hold, given.workdir) if given.hold else None
    program = Program(given.workdir, memory=int(given.mib * (1 << 20)))

    def step() -> None:
        program.facts["held"] = held is not None
        line.sendall(NUMBER.pack(program.counter))
        program.expect(NUMBER.unpack(received(line)) == (program.counter,), "another number came back")

    program.run(step)


def serve(listener: socket.socket) -> NoReturn:
    """Send back everything until the other end is closed."""
    line, _ = listener.accept()
    listener.close()
    while content := line.recv(1 << 12):
        line.sendall(content)
    os._exit(0)


def received(line: socket.socket) -> bytes:
    """Receive the bytes of one number."""
    content = b""
    while len(content) < NUMBER.size:
        more = line.recv(NUMBER.size - len(content))
        if not more:
            raise ConnectionError("the server is gone")
        content += more
    return content


def hold(kind: str, workdir: Path) -> socket.socket | int:
    """Open something that CRIU cannot save."""
    if kind == "unix":
        line = socket.socket(socket.AF_UNIX)
        line.connect(str(workdir / "peer.sock"))
        return line
    if kind == "vsock":
        return socket.socket(socket.AF_VSOCK)
    if kind == "mptcp":
        return socket.socket(proto=socket.IPPROTO_MPTCP)
    if kind == "udp":
        waiting = socket.socket(type=socket.SOCK_DGRAM)
        waiting.bind(("127.0.0.1", 0))
        waiting.sendto(b"unread", waiting.getsockname())
        return waiting
    if kind == "inotify":
        watch = LIBC.inotify_init1(os.O_CLOEXEC)
        LIBC.inotify_add_watch(watch, os.fsencode(workdir), IN_CREATE)
        (workdir / "noticed").touch()
        return int(watch)
    if kind == "io_uring":
        return system_call(IO_URING_SETUP, ENTRIES, ctypes.create_string_buffer(PARAMETERS_BYTES))
    return system_call(USERFAULTFD[os.uname().machine], os.O_CLOEXEC)


def system_call(number: int, *arguments: object) -> int:
    """Return the descriptor that a system call returns; raise OSError if it fails."""
    descriptor = int(LIBC.syscall(number, *arguments))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


if __name__ == "__main__":
    main()
