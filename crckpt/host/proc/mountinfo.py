"""Mounts of our own mount namespace: read, added, and made its root. Source: mount(2), proc_pid_mountinfo(5)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

BIND: Final = 4096
_RDONLY: Final = 1
_REMOUNT: Final = 32
_DETACH: Final = 2
_FLAGS: Final = {"nosuid": 2, "nodev": 4, "noexec": 8}
"""linux/mount.h"""

_PIVOT_ROOT: Final = 155
"""asm/unistd_64.h"""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Mount(Struct, frozen=True):
    """A mount: `options` are those of the mount itself, `of_all` those of its file system, of which is `device`."""

    id: int
    device: int
    path: str
    kind: str
    options: frozenset[str]
    of_all: frozenset[str]

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be written there."""
        return "ro" in self.options or "ro" in self.of_all

    @property
    def flags(self) -> int:
        """What it does not allow, as mount(2) wants it."""
        return sum(flag for name, flag in _FLAGS.items() if name in self.options)


def mounted() -> tuple[Mount, ...]:
    """The mounts of our namespace, each mount point once (the last one mounted there), parents first."""
    found: dict[str, Mount] = {}
    for each in every_mount():
        found.pop(each.path, None)
        found[each.path] = each
    return tuple(sorted(found.values(), key=lambda mount: len(Path(mount.path).parts)))


def every_mount() -> Iterator[Mount]:
    """The mounts of our namespace as the kernel lists them, those too that lie below others."""
    return mounts_of("self")


def mounts_of(pid: int | str) -> Iterator[Mount]:
    """Likewise the mounts of the namespace of a process."""
    for line in Path(f"/proc/{pid}/mountinfo").read_bytes().removesuffix(b"\n").split(b"\n"):
        before, _, after = line.partition(b" - ")
        fields, (kind, _, of_all) = before.split(b" "), after.split(b" ", 2)
        device = os.makedev(*map(int, fields[2].split(b":")))
        path = os.fsdecode(fields[4].decode("unicode_escape").encode("latin-1"))
        yield Mount(int(fields[0]), device, path, kind.decode(), _words(fields[5]), _words(of_all))


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    words = (os.fsencode(word) or None for word in (source, target, kind))
    _checked(_LIBC.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) or None), target)


def bind(source: str, target: str) -> None:
    """Let `target` be what `source` is, without what is mounted below it. Raises OSError."""
    mount(source, target, flags=BIND)


def bind_read_only(source: str, target: str, flags: int = 0) -> None:
    """Likewise; nothing can be written there, but devices and sockets work. Raises OSError."""
    bind(source, target)
    mount("", target, flags=_REMOUNT | BIND | _RDONLY | flags)


def become_root(path: str) -> None:
    """Make a mount point the root of our mount namespace; the old root is no longer there. Raises OSError."""
    os.chdir(path)
    # The old root over the new one: so no directory is needed for it. Source: pivot_root(2).
    _checked(_LIBC.syscall(_PIVOT_ROOT, b".", b"."), path)
    _checked(_LIBC.umount2(b".", _DETACH), path)
    os.chdir("/")


def _words(field: bytes) -> frozenset[str]:
    return frozenset(os.fsdecode(field).split(","))


def _checked(answer: int, path: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
