"""The kinds of resources that a tree may hold, and those of which a test restores one.

CRIU may save what it cannot restore. So `--stop` ends a tree with an untested kind only with `--force`.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from typing import Final

from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Descriptor, Process
from crckpt.host.proc.procfs import DELETED

# 1:3, 1:5, 1:7, 1:8, 1:9: null, zero, full, random, urandom. 10: SOCK_PACKET.
TESTED: Final = frozenset(
    (
        *("regular file", "deleted file", "deleted directory", "deleted named pipe", "directory", "file of /proc"),
        *("file opened with O_PATH", "fanotify", "pidfd", "descriptor of a namespace", "device 1:3", "device 1:5"),
        *("device 1:7", "device 1:8", "device 1:9", "socket AF_INET SOCK_DGRAM", "socket AF_INET6 SOCK_DGRAM"),
        *("socket AF_INET SOCK_RAW", "socket AF_INET6 SOCK_RAW", "socket AF_NETLINK SOCK_RAW"),
        *("socket AF_PACKET SOCK_RAW", "socket AF_PACKET SOCK_DGRAM", "socket AF_PACKET 10"),
        *("filter of system calls (seccomp)", "process that is stopped", "process that has ended and was not reaped"),
        *("pipe", "named pipe", "socket AF_UNIX SOCK_SEQPACKET", "memfd", "eventfd", "eventpoll", "timerfd"),
        *("signalfd", "inotify", "pseudo terminal, master side", "pseudo terminal", "socket AF_UNIX SOCK_STREAM"),
        *("socket AF_UNIX SOCK_DGRAM", "socket AF_INET SOCK_STREAM", "socket AF_INET6 SOCK_STREAM"),
        *("System V shared memory", "ipc namespace", "uts namespace", "time namespace", "terminal of the session"),
        *("console", "virtual console", "net namespace", "net namespace inside the tree's own", "cgroup namespace"),
        *("mnt namespace", "pid namespace"),
    )
)
"""Kinds of which a test dumps a tree with one, ends it, restores it, and compares: tests/support/kind_tests.py."""

_TERMINALS_BY_NUMBER: Final = {
    (5, 0): "terminal of the session",
    (5, 1): "console",
    (5, 2): "pseudo terminal, master side",
    **{(4, minor): "virtual console" for minor in range(1, 64)},
}
_PSEUDO_TERMINALS: Final = range(136, 144)
_SECCOMP_FILTER: Final = 2  # linux/seccomp.h


def find_kinds(observed: Observed) -> dict[str, str]:
    """Return each kind that the tree holds, and where the first one is: a process, or one of its descriptors."""
    own, root = dict(observed.own_namespaces), dict(observed.tree.root.namespaces)
    found: dict[str, str] = {}
    for process in observed.tree.processes:
        for kind in _process_kinds(process, own, root):
            found.setdefault(kind, f"process {process.pid}")
    for held in observed.descriptors:
        if not held.target.startswith("socket:["):
            found.setdefault(_descriptor_kind(held), f"fd {held.fd} of process {held.pid}, {held.target}")
    for opened in observed.sockets:
        kind = f"socket {_name(opened.family, 'AF_')} {_name(opened.kind, 'SOCK_')}"
        found.setdefault(kind, f"fd {opened.fd} of process {opened.pid}")
    for mapping in observed.unsavable_maps:
        if mapping.kind == "sysv":
            found.setdefault("System V shared memory", f"process {mapping.pid}")
    return found


def find_untested(observed: Observed) -> dict[str, str]:
    """Return each kind that the tree holds and no test restores, and where it is."""
    return {kind: where for kind, where in find_kinds(observed).items() if kind not in TESTED}


def _process_kinds(process: Process, own: dict[str, int], root: dict[str, int]) -> Iterator[str]:
    if process.state == "zombie":
        yield "process that has ended and was not reaped"
        return
    if process.state == "stopped":
        yield "process that is stopped"
    for kind, inode in process.namespaces:
        if not kind.endswith("_for_children") and own.get(kind, inode) != inode:
            # A nested namespace is a kind of its own: CRIU saves some of them, and restores fewer.
            nested = " inside the tree" if root.get(kind) == own.get(kind) else " inside the tree's own"
            yield f"{kind} namespace{'' if root.get(kind) == inode else nested}"
    if process.seccomp:
        kind = "filter" if process.seccomp == _SECCOMP_FILTER else "strict limit"
        yield f"{kind} of system calls (seccomp)"


def _descriptor_kind(found: Descriptor) -> str:
    kind, _, name = found.target.partition(":")
    number = os.major(found.device), os.minor(found.device)
    # The first case that applies. A namespace may be mounted at a path, so it comes before files.
    cases = {
        "pipe": kind == "pipe",
        name.strip("[]"): kind == "anon_inode",
        "descriptor of a namespace": found.is_namespace,
        "memfd": found.target.startswith("/memfd:"),
        "pseudo terminal": stat.S_ISCHR(found.mode) and number[0] in _PSEUDO_TERMINALS,
        _TERMINALS_BY_NUMBER.get(number, f"device {number[0]}:{number[1]}"): stat.S_ISCHR(found.mode),
        "file opened with O_PATH": bool(found.flags & os.O_PATH),
    }
    return next((kind for kind, applies in cases.items() if applies), "") or _file_kind(found)


def _file_kind(found: Descriptor) -> str:
    kinds = {stat.S_IFREG: "regular file", stat.S_IFDIR: "directory", stat.S_IFIFO: "named pipe"}
    kind = kinds.get(stat.S_IFMT(found.mode), "")
    mount = next((mount for mount in ("/proc", "/sys") if found.target.startswith(f"{mount}/")), "")
    if not kind:
        return f"file of mode {found.mode:o}" if found.mode else "unreadable file"
    if mount:
        return f"{'file' if kind == 'regular file' else kind} of {mount}"
    return f"deleted {kind.removeprefix('regular ')}" if found.target.endswith(DELETED) else kind


def _name(number: int, prefix: str) -> str:
    """Return the name of the constant, as socket(7) spells it."""
    names = (name for name in dir(socket) if name.startswith(prefix) and getattr(socket, name) == number)
    return next(names, str(number))
