"""System calls that Python does not have, by number or through libc. Each raises OSError for an error."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)

# asm/unistd_64.h of x86-64, and asm-generic/unistd.h; from 424 on, all machines count alike.
_X86: Final = os.uname().machine == "x86_64"
EXIT: Final = 60 if _X86 else 93
PERF_EVENT_OPEN: Final = 298 if _X86 else 241
IO_URING_SETUP: Final = 425
OPEN_TREE: Final = 428
PIDFD_OPEN: Final = 434
MEMFD_SECRET: Final = 447

# linux/sched.h
CLONE_VM: Final = 0x100
CLONE_VFORK: Final = 0x4000
CLONE_NEWUTS: Final = 0x4000000
MS_BIND: Final = 0x1000
MNT_DETACH: Final = 2


def call(number: int, *arguments: object) -> int:
    """Return the result of a system call."""
    return _done(LIBC.syscall(number, *arguments))


def unshare(flags: int) -> None:
    """Enter new namespaces."""
    _done(LIBC.unshare(flags))


def mount(source: Path | str, target: Path, kind: str = "", flags: int = 0) -> None:
    """Mount `source` at `target`, which is created if it does not exist."""
    if not target.exists():
        target.mkdir()
    _done(LIBC.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, None))


def unmount(target: Path) -> None:
    """Unmount it, even if it is in use."""
    _done(LIBC.umount2(os.fsencode(target), MNT_DETACH))


def watch(path: Path, events: int) -> int:
    """Make an inotify descriptor that watches `path`."""
    descriptor = _done(LIBC.inotify_init1(os.O_CLOEXEC))
    _done(LIBC.inotify_add_watch(descriptor, os.fsencode(path), events))
    return descriptor


def _done(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)
