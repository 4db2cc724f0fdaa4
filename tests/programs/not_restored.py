"""Kinds for blocked.py: what CRIU saves, and does not restore."""

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from oddities import LIBC, answered, checked, outside

F_SETOWN_EX: Final = 15
F_OWNER_TID, F_OWNER_PID, F_OWNER_PGRP = range(3)


def unmapped(*names: str) -> Callable[[Path], object]:
    """A kind: a child that has unmapped what the kernel calls so."""

    def kind(_: Path) -> int:
        read_end, tell = os.pipe()

        def child() -> NoReturn:
            lines = Path("/proc/self/maps").read_text().splitlines()
            for start, end in (line.split()[0].split("-") for line in lines if line.endswith(names)):
                checked(LIBC.munmap(ctypes.c_void_p(int(start, 16)), int(end, 16) - int(start, 16)))
            # Its C library would read the time there.
            os.write(tell, b"1")
            while True:
                signal.pause()

        return answered(child, read_end, tell)

    return kind


def changed_vdso(_: Path) -> None:
    """A vDSO whose symbols lie, by its own table, far outside."""
    (line,) = (line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[vdso]"))
    start, end = (int(address, 16) for address in line.split()[0].split("-"))
    content = ctypes.string_at(start, end - start)
    checked(LIBC.mprotect(ctypes.c_void_p(start), end - start, 7))
    # Elf64_Sym: name, info, other, section, value, size. Global or weak functions: elf(5).
    symbol = struct.Struct("<IBBHQQ")
    for at in range(0, len(content) - symbol.size, 8):
        name, info, other, section, value, size = symbol.unpack_from(content, at)
        if info in (0x12, 0x22) and not other and section and 0 < size < value < len(content) and name < value:
            ctypes.c_uint64.from_address(start + at + 8).value = 1 << 40


def signals_above_limit(__: Path) -> None:
    """Signals that were queued before the limit was lowered."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN + 1})
    for _ in range(3):
        checked(LIBC.sigqueue(os.getpid(), signal.SIGRTMIN + 1, None))
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (1, 1))


def removed_attributes(workdir: Path) -> int:
    """Removed files, one with extended attributes."""
    for name in ("plain", "marked"):
        fd = os.open(workdir / name, os.O_CREAT | os.O_RDWR)
        (workdir / name).unlink()
    os.setxattr(fd, "user.mark", b"value")
    return fd


def path_of_socket(workdir: Path) -> object:
    """The file of a unix socket, opened by its path."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(workdir / "socket"))
    return server, os.open(workdir / "socket", os.O_PATH)


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
