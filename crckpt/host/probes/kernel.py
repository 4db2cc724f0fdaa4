"""Features of this kernel and CPU that are quick to read, without privileges and without changing anything."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

_SECCOMP = Path("/proc/sys/kernel/seccomp/actions_avail")  # since Linux 4.14
_CLOCKS = Path("/proc/self/ns/time")
_PID_MAX = Path("/proc/sys/kernel/pid_max")
_APPARMOR = Path("/sys/module/apparmor/parameters/enabled")
_SELINUX = Path("/sys/fs/selinux/enforce")

# Enough bytes for the kernel's description of one CPU.
_ONE_CPU = 16384

_MADV_GUARD_INSTALL = 102  # linux/mman.h, Linux 6.13


def has_family(family: int) -> bool:
    """Return whether the kernel has sockets of an address family: make one."""
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
    except OSError as error:
        # Any other error means that the kernel knows the family: it may want another type, or a capability.
        return error.errno != errno.EAFNOSUPPORT
    return True


def has_seccomp_filters() -> bool:
    """Return whether programs can have seccomp filters (CONFIG_SECCOMP_FILTER)."""
    return _SECCOMP.exists()


def has_guard_pages() -> bool:
    """Return whether the kernel has guard pages: guard a page of ours."""
    import mmap  # for few trees

    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        try:
            page.madvise(_MADV_GUARD_INSTALL)
        except OSError:  # EINVAL: an older kernel
            return False
    return True


def has_clocks() -> bool:
    """Return whether monotonic clocks can be set for a tree (time namespaces, CONFIG_TIME_NS)."""
    return _CLOCKS.exists()


def has_security_module(name: str) -> bool:
    """Return whether `apparmor` or `selinux` is active."""
    if name == "apparmor":
        return _APPARMOR.exists() and _APPARMOR.read_text().strip() == "Y"
    return _SELINUX.exists()


def cpu_features() -> tuple[str, ...]:
    """Features of the first CPU, in the kernel's words, sorted. Source: /proc/cpuinfo."""
    # Its first part has the first CPU whole: a machine with hundreds of them takes its time to describe all.
    with Path("/proc/cpuinfo").open("rb", buffering=0) as file:
        first = file.read(_ONE_CPU).decode(errors="replace")
    for line in first.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return tuple(sorted(value.split()))
    return ()


def arch() -> str:
    """The architecture, as the kernel names it."""
    return os.uname().machine


def pid_limit() -> int:
    """The limit below which all PIDs are."""
    return int(_PID_MAX.read_text())
