"""Whether a process is confined by Landlock, as far as that can be known.

The kernel tells it nowhere. But a process in a Landlock domain may not look into one outside of it, even if that has
the same user and fewer rights. So one is started for that, and the process is made to compare its memory with that of
the other (kcmp(2)): only a domain forbids it. Where something else could (another security module with a label for it,
another user or PID namespace) nothing is known.

Sources: security/landlock/ptrace.c; kernel/ptrace.c: __ptrace_may_access; kernel/kcmp.c.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from crckpt.host import proc, procfs

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CREATE_RULESET: Final = 444
_VERSION: Final = 1
_CAPSET: Final = {"x86_64": 126}.get(os.uname().machine, 91)
_SET_DUMPABLE: Final = 4


def kernel_has_landlock() -> bool:
    """Whether any process can have such a domain."""
    return bool(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION) > 0)


def has_landlock_domain(pid: int, compares_with: Callable[[int], int]) -> bool:
    """`compares_with` has the process compare its memory with that of a PID: its answer, or minus the errno."""
    if not kernel_has_landlock() or not _may_be_known(pid):
        return False
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _wait_as(pid, writer)
    os.close(writer)
    try:
        if not os.read(reader, 1):
            return False
        return compares_with(child) == -errno.EPERM
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _may_be_known(pid: int) -> bool:
    if any(proc.namespace(pid, kind) != proc.namespace("self", kind) for kind in ("user", "pid")):
        return False
    with suppress(OSError):
        return procfs.text(f"/proc/{pid}/attr/current").strip("\0\n") in ("", "unconfined", "kernel")
    return True


def _wait_as(pid: int, ready: int) -> NoReturn:
    """As a process of the same user and groups, without any right that it may lack, until it is ended."""
    try:
        said = procfs.text(f"/proc/{pid}/status")
        uid, gid = (int(found.split()[0]) for found in re.findall(r"^[UG]id:\s*(.*)$", said, re.MULTILINE))
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        # Version 3 of the capabilities' header, and no capability at all.
        _LIBC.syscall(_CAPSET, (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
        _LIBC.prctl(_SET_DUMPABLE, 1, 0, 0, 0)
        os.write(ready, b".")
        signal.pause()
    finally:
        os._exit(0)
