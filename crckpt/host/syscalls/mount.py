"""Mount file systems in our own mount namespace, and change its root. Source: mount(2), pivot_root(2)."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from crckpt.host.syscalls.libc import LIBC, check, syscall

# linux/mount.h
BIND: Final = 4096
_RDONLY: Final = 1
_REMOUNT: Final = 32
_DETACH: Final = 2


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Make a mount, as of mount(2). Raises OSError."""
    words = (os.fsencode(word) or None for word in (source, target, kind))
    check(LIBC.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) or None), target)


def bind(source: str, target: str) -> None:
    """Bind-mount `source` on `target`, without the mounts below it. Raises OSError."""
    mount(source, target, flags=BIND)


def bind_read_only(source: str, target: str, flags: int = 0) -> None:
    """Bind-mount read-only: files cannot be written, but devices and sockets work. Raises OSError."""
    # The first call ignores all flags but MS_BIND. The second replaces all: those that are left out (nosuid, nodev)
    # would be gone. Source: mount(2).
    bind(source, target)
    mount("", target, flags=_REMOUNT | BIND | _RDONLY | flags)


def become_root(path: str) -> None:
    """Make a mount point the root of our mount namespace, and unmount the old root. Raises OSError."""
    os.chdir(path)
    # Stack the old root on the new one, so that it needs no directory. Source: pivot_root(2).
    syscall("pivot_root", b".", b".", path=path)
    check(LIBC.umount2(b".", _DETACH), path)
    os.chdir("/")
