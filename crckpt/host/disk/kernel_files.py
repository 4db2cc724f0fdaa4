"""Open files of the kernel's own file systems: /proc, /sys, control groups."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from crckpt.host.disk.file_system import read_magic


class KernelFile(Struct, frozen=True):
    """An open file: `magic` of its file system (linux/magic.h), path, `flags` of open(2), and `mode` (st_mode)."""

    magic: int
    path: str
    flags: int
    mode: int


def read_kernel_file(pid: int, fd: int, flags: int) -> KernelFile:
    """Read what a descriptor of a process leads to. Raises OSError."""
    link = Path(f"/proc/{pid}/fd/{fd}")
    return KernelFile(read_magic(f"{link}"), f"{link.readlink()}", flags, link.stat().st_mode)
