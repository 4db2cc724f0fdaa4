"""A counter that does something once it finds itself in another network than the one it was started in.

Usage: elsewhere.py WORKDIR HOST WHAT [ARGUMENT]. It listens on HOST, at a port that is written to WORKDIR/port, and
has WORKDIR/held.txt open for writing. Where somebody listens at WORKDIR/log.sock, it says there where it is. WHAT is
`exit` with a status, a `signal` to itself, the same to a `child`, `memory` without end, to `write` wherever it can, or
to `stay` as it is.
"""

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from selfcheck import Program, fork

MUCH = 16 << 20
SETTLED = 10
"""Steps after which it acts, if CRIU has let go of all processes: one that ends before makes its restore fail."""


def is_traced(pid: int) -> bool:
    """Return whether a process traces us, as CRIU does until it is done."""
    return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()


def main() -> None:
    """Count, and act when it is time."""
    workdir, host, what = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    argument = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    program = Program(workdir)
    listener = socket.create_server((host, 0))
    (workdir / "port").write_text(str(listener.getsockname()[1]))
    for name in ("held.txt", "kept.txt"):
        (workdir / name).write_text("as it was\n")
    held = os.open(workdir / "held.txt", os.O_RDWR)
    child = fork(sleep)
    home = network()
    log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    log.setblocking(False)
    memory: list[bytes] = []

    def act() -> None:
        if what == "exit":
            os._exit(argument)
        elif what in ("signal", "child"):
            os.kill(child if what == "child" else os.getpid(), argument)
        elif what == "memory":
            memory.append(os.urandom(MUCH))
        elif what == "write":
            write(workdir, held)

    steps = 0

    def step() -> None:
        nonlocal steps
        say(log, str(workdir / "log.sock"))
        steps += network() != home
        if steps > SETTLED and not any(map(is_traced, (os.getpid(), child))):
            act()

    program.run(step)


def say(log: socket.socket, path: str) -> None:
    """Send where we are; a datagram that cannot be sent is lost."""
    try:
        log.send(network().encode())
    except OSError:
        with suppress(OSError):
            log.connect(path)


def network() -> str:
    """Return what names our network namespace."""
    return str(Path("/proc/self/ns/net").readlink())


def write(workdir: Path, held: int) -> None:
    """Write to an open file, a new file and shared memory, and remove files."""
    os.pwrite(held, b"changed\n", 0)
    (workdir / "new.txt").write_text("new")
    Path("/dev/shm", workdir.name).write_text("new")
    (workdir / "kept.txt").unlink(missing_ok=True)
    (workdir / "port").chmod(0o600)


def sleep() -> NoReturn:
    """Start a child that waits to be ended."""
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
