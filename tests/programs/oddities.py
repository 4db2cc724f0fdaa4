"""System calls that Python does not offer, and helper processes, for programs with rare resources."""

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from selfcheck import fork

LIBC: Final = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = LIBC.shmat.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
PAGE: Final = mmap.PAGESIZE


def outside(workdir: Path, keep: Callable[[], object]) -> int:
    """Return the PID of a process outside the tree that holds what `keep` returns."""
    read_end, tell = os.pipe()

    def between() -> NoReturn:
        if not os.fork():
            os.setsid()
            kept = keep()
            os.write(tell, str(os.getpid()).encode())
            wait(lambda: kept is None or not workdir.exists())
        os._exit(0)

    os.waitpid(fork(between), 0)
    os.close(tell)
    return received(read_end)


def answered(child: Callable[[], NoReturn], descriptor: int, tell: int) -> int:
    """Start the process and return the number that it writes."""
    fork(child)
    os.close(tell)
    return received(descriptor)


def received(descriptor: int) -> int:
    """Return the number that another process writes there."""
    number = int(os.read(descriptor, 20))
    os.close(descriptor)
    return number


def pause(tell: int, number: int = 0) -> NoReturn:
    """Write it, and wait for ever."""
    os.write(tell, str(number).encode())
    os.close(tell)
    wait(lambda: False)
    os._exit(1)


def wait(holds: Callable[[], bool]) -> None:
    """Until it does."""
    while not holds():
        time.sleep(0.02)


def mapped(
    fd: int, size: int = PAGE, flags: int = mmap.MAP_SHARED, prot: int = mmap.PROT_READ | mmap.PROT_WRITE
) -> int:
    """Return the address of new memory."""
    address = LIBC.mmap(None, size, prot, flags, fd, 0)
    return checked(-1) if address == ctypes.c_void_p(-1).value else int(address)


def mounted(point: Path) -> bool:
    """Mount an empty file system over a directory."""
    return checked(LIBC.mount(b"none", os.fsencode(point), b"tmpfs", 0, b"size=1m")) == 0


def unshared(namespace: int) -> bool:
    """Leave a namespace for a new one."""
    return checked(LIBC.unshare(namespace)) == 0


def called(number: int, *arguments: object) -> int:
    """Return the result of a system call."""
    return checked(LIBC.syscall(number, *arguments))


def checked(returned: int) -> int:
    """Raise OSError for a failure."""
    if returned < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return returned
