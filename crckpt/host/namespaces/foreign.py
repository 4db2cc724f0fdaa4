"""Find namespaces of a tree that belong to another user namespace than crckpt's: their owner controls them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.host.opened import opened
from crckpt.host.proc import Process

# linux/nsfs.h
_NS_GET_USERNS: Final = 0xB701


class ForeignNamespace(Struct, frozen=True):
    """A namespace of process `pid` that is another user namespace than ours (kind `user`), or belongs to one."""

    pid: int
    comm: str
    kind: str


def find_foreign_namespaces(processes: Iterable[Process], own: Process) -> Iterator[ForeignNamespace]:
    """List each process in another user namespace, and each namespace that belongs to one, once.

    Takes no time for our own namespaces. Skip a process that ends at the same time.
    """
    ours, belongs = dict(own.namespaces), dict[int, bool]()
    for process in processes:
        theirs = dict(process.namespaces)
        if theirs.get("user") != ours.get("user"):
            # One finding is enough, because the tree is refused. Without any namespace, the process has ended or we
            # may not look.
            if theirs:
                yield ForeignNamespace(process.pid, process.comm, "user")
            continue
        for kind, inode in process.namespaces:
            name = kind.removesuffix("_for_children")
            if inode not in belongs and inode != ours.get(name):
                with suppress(FileNotFoundError, ProcessLookupError):
                    belongs[inode] = _owner(process.pid, kind) == ours["user"]
                    if not belongs[inode]:
                        yield ForeignNamespace(process.pid, process.comm, name)


def _owner(pid: int, kind: str) -> int:
    """Return the inode of the user namespace that owns this namespace of the process; 0 if it is beyond our reach."""
    with opened(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)) as namespace:
        try:
            owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
        except PermissionError as error:
            if error.errno == errno.EPERM:  # the owner is no descendant of our user namespace (ioctl_ns(2))
                return 0
            raise
    with opened(owner):
        return os.fstat(owner).st_ino
