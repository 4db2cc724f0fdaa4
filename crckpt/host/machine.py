"""This host: what a manifest records of it and its CRIU, and features of its kernel and CPU that are quick to read."""

from __future__ import annotations

import errno
import mmap
import os
import platform
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.process import run
from crckpt.model import Host

# Of a shell for a program that it cannot execute or find, and of the loader for a library. Source: execve(2), ld.so.
_NOT_STARTED: Final = (126, 127)
_APPARMOR = Path("/sys/module/apparmor/parameters/enabled")

# Enough bytes for the kernel's description of one CPU.
_ONE_CPU = 16384


def read_machine_id() -> str:
    """Read what identifies this installation (machine-id(5)); empty if there is none."""
    with suppress(OSError):
        return Path("/etc/machine-id").read_text(errors="replace").strip()[:64]
    return ""


def describe_host(criu_version: str, criu_digest: str) -> Host:
    """Describe this host, and the CRIU that makes the checkpoint."""
    return Host(
        hostname=platform.node(),
        kernel=platform.release(),
        arch=platform.machine(),
        page_size=mmap.PAGESIZE,
        cpu_features=cpu_features(),
        criu_version=criu_version,
        criu_digest=criu_digest,
    )


def read_criu_version(criu: Path) -> str:
    """Read the number that `criu --version` prints. Raises HostCannot if it does not start, or is another program.

    The message begins with `it`: the caller names the program.
    """
    said = run.run([criu, "--version"])
    # `GitID: v4.2` may follow.
    if found := re.search(r"Version: (\S+)", said.output):
        return found[1]
    lines = said.output.strip().splitlines() or [f"status {said.status}"]
    # The loader's own complaint begins with the program that it cannot load, or ends with this status.
    is_started = said.ok or not (said.status in _NOT_STARTED or said.status < 0 or lines[0].startswith(f"{criu}:"))
    if is_started and said.output.strip():
        raise HostCannot(f"it is not CRIU: its --version says {lines[0]!r}")
    raise HostCannot("it is not CRIU: its --version says nothing" if said.ok else f"it does not start: {lines[-1]}")


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
    return Path("/proc/sys/kernel/seccomp/actions_avail").exists()  # since Linux 4.14


def has_clocks() -> bool:
    """Return whether monotonic clocks can be set for a tree (time namespaces, CONFIG_TIME_NS)."""
    return Path("/proc/self/ns/time").exists()


def has_security_module(name: str) -> bool:
    """Return whether `apparmor` or `selinux` is active."""
    if name == "apparmor":
        return _APPARMOR.exists() and _APPARMOR.read_text().strip() == "Y"
    return Path("/sys/fs/selinux/enforce").exists()


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
    return int(Path("/proc/sys/kernel/pid_max").read_text())
