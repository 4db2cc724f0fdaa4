"""Kinds for blocked.py: processes at a limit, or that share what CRIU saves once."""

import ctypes
import fcntl
import mmap
import os
import resource
import signal
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from oddities import LIBC, PAGE, answered, called, checked, mounted, pause, unshared

CLONE: Final = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
# linux/sched.h
CLONE_FS: Final = 0x200
CLONE_FILES: Final = 0x400
CLONE_PARENT: Final = 0x8000
CLONE_NEWNS: Final = 0x20000
CLONE_NEWIPC: Final = 0x8000000
CLONE_NEWPID: Final = 0x20000000
MS_PRIVATE_ALL: Final = 0x44000
CLOCK_BOOTTIME_ALARM: Final = 9


def alarm_timer(_: Path) -> int:
    """A timer that wakes the machine."""
    return checked(LIBC.timerfd_create(CLOCK_BOOTTIME_ALARM, 0))


def current_terminal(_: Path) -> object:
    """A child with /dev/tty open, on a terminal of which its parent has the master."""
    read_end, tell = os.pipe()
    master, slave = os.openpty()

    def child() -> NoReturn:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        os.close(master)
        os.open("/dev/tty", os.O_RDWR)
        pause(tell)

    return master, answered(child, read_end, tell)


def shared_directories(_: Path) -> int:
    """A child that shares its working directory with its parent."""
    return _answered(lambda tell: _with_clone(CLONE_FS, tell))


def shared_descriptors(_: Path) -> int:
    """A process that shares its descriptors with its brother."""
    return _answered(lambda tell: _with_clone(CLONE_FILES | CLONE_PARENT, tell))


def _with_clone(flags: int, tell: int) -> NoReturn:
    if called(CLONE, flags | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        while True:
            signal.pause()
    os.write(tell, b"0")
    while True:
        signal.pause()


def own_dev(_: Path) -> int:
    """The host's /dev/null, below a private /dev; the program was started there."""
    if "INSIDE" not in os.environ:
        held = os.open("/dev/null", os.O_RDWR)
        os.set_inheritable(held, True)
        _leave_mounts()
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"INSIDE": str(held)})  # noqa: S606
    return int(os.environ["INSIDE"])


def left_mounts(_: Path) -> bool:
    """The program enters a mount namespace with a private /dev after it was started."""
    _leave_mounts()
    return True


def _leave_mounts() -> None:
    unshared(CLONE_NEWNS)
    checked(LIBC.mount(None, b"/", None, MS_PRIVATE_ALL, None))
    mounted(Path("/dev"))


def nested_pids(_: Path) -> int:
    """A child that is the first process of a PID namespace."""
    read_end, tell = os.pipe()
    unshared(CLONE_NEWPID)
    return answered(lambda: pause(tell), read_end, tell)


def deep_file(workdir: Path) -> int:
    """A file whose path is longer than any path."""
    os.chdir(workdir)
    for _ in range(20):
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    held = os.open("file", os.O_CREAT | os.O_RDWR)
    os.chdir("/")
    return held


def many_groups(_: Path) -> bool:
    """More groups than CRIU has space for."""
    os.setgroups(range(1000, 2000))
    return True


def long_groups(_: Path) -> bool:
    """Groups whose numbers take more space than CRIU has for a line."""
    os.setgroups(range(1_000_000, 1_000_600))
    return True


def full_descriptors(_: Path) -> int:
    """A child with two free descriptors."""

    def fill(tell: int) -> NoReturn:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        opened = []
        with suppress(OSError):
            while True:
                opened.append(os.dup(tell))
        for descriptor in opened[-2:]:
            os.close(descriptor)
        os.write(tell, b"0")
        while True:
            signal.pause()

    return _answered(fill)


def full_addresses(_: Path) -> int:
    """A child that can map nothing more."""

    def fill(tell: int) -> NoReturn:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
        resource.setrlimit(resource.RLIMIT_AS, (used, used))
        pause(tell)

    return _answered(fill)


def full_maps(_: Path) -> int:
    """A child with as many maps as this kernel allows."""

    def fill(tell: int) -> NoReturn:
        kept: list[mmap.mmap] = []
        with suppress(OSError):
            while True:
                # Maps with the same rights would become one.
                rights = mmap.PROT_READ | (mmap.PROT_WRITE if len(kept) % 2 else 0)
                kept.append(mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=rights))
        kept.pop().close()
        os.write(tell, b"0")
        while True:
            signal.pause()

    return _answered(fill)


def part_of_segment(_: Path) -> int:
    """System V memory of which a page in the middle is not attached any more."""
    unshared(CLONE_NEWIPC)
    segment = checked(LIBC.shmget(0, 4 * PAGE, 0o1600))
    address = int(LIBC.shmat(segment, None, 0))
    checked(LIBC.munmap(ctypes.c_void_p(address + 2 * PAGE), ctypes.c_size_t(PAGE)))
    return address


def _answered(child: Callable[[int], NoReturn]) -> int:
    read_end, tell = os.pipe()
    return answered(lambda: child(tell), read_end, tell)
