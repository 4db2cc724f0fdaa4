"""What only calls of a process itself tell: its segments (LDT) by modify_ldt(2), and whether it has a Landlock domain.

The kernel does not report a domain. But a process in one may not inspect a process outside of it, even one of the same
user with fewer rights. So crckpt starts such a process, and makes the program compare its memory with it (kcmp(2)):
only a domain forbids that. If something else may forbid it (another security module with a label, another user or PID
namespace), the answer is unknown. Wine and old emulators have segments.

Sources: security/landlock/ptrace.c; kernel/ptrace.c: __ptrace_may_access; modify_ldt(2); asm/ldt.h;
arch/x86/include/asm/desc.h: fill_ldt.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.attributes.comparison_process import comparison_process
from crckpt.host.proc import procfs
from crckpt.host.syscalls import ptrace
from crckpt.host.syscalls.libc import syscall

_VERSION: Final = 1

_MODIFY_LDT, _MMAP, _MUNMAP = 154, 9, 11
_READ, _WRITE = 0, 0x11
_ENTRY: Final = struct.Struct("<II")
_USER_ENTRY: Final = struct.Struct("<IIII")  # struct user_desc: number, base, limit, flags
_BYTES: Final = 8192 * _ENTRY.size


def kernel_has_landlock() -> bool:
    """Return whether any process can have such a domain."""
    with suppress(OSError):  # ENOSYS: before Linux 5.13. EOPNOTSUPP: not enabled at boot.
        return syscall("landlock_create_ruleset", None, 0, _VERSION) > 0
    return False


def has_landlock_domain(pid: int, compares_with: Callable[[int], int]) -> bool:
    """Return whether process `pid` has a Landlock domain. `compares_with(other)` makes it call kcmp(2) for its memory
    and that of process `other`, and returns the result, or minus the errno.

    We get a child: call this only in a helper process. Raises HostCannot if it could not be tried.
    """
    if not kernel_has_landlock():
        return False
    # Another user namespace may forbid it, too; in another PID namespace our process has no number.
    is_near = all(proc.namespace(pid, kind) == proc.namespace("self", kind) for kind in ("user", "pid"))
    label = ""
    with suppress(OSError):  # EINVAL: no module gives labels
        label = procfs.text(f"/proc/{pid}/attr/current").strip("\0\n")
    # A label of AppArmor, SELinux or Smack may forbid it, too.
    if not is_near or label not in ("", "unconfined", "kernel"):
        return False
    with comparison_process(pid) as other:
        answer = compares_with(other)
    # ENOSYS: a kernel without kcmp.
    if answer < 0 and answer not in (-errno.EPERM, -errno.ENOSYS):
        raise HostCannot(f"crckpt cannot compare PID {pid} with another process: {os.strerror(-answer)}")
    return answer == -errno.EPERM


def read_segments(thread: ptrace.StoppedThread, pid: int) -> tuple[int, ...]:
    """Number and both words of each segment. Those of 32-bit programs are not read."""
    # Without a place for them the kernel refuses only what it has.
    if thread.is_compat or _modify(thread, _READ, 0, _BYTES) != -errno.EFAULT:
        return ()
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = thread.system_call(_MMAP, 0, _BYTES, access, flags, -1, 0)
    if address < 0:
        return ()
    try:
        size = max(0, _modify(thread, _READ, address, _BYTES))
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            content = memory.read(size)
    finally:
        thread.system_call(_MUNMAP, address, _BYTES)
    entries = enumerate(_ENTRY.iter_unpack(content[: len(content) // _ENTRY.size * _ENTRY.size]))
    return tuple(word for number, (low, high) in entries if low or high for word in (number, low, high))


def set_segments(thread: ptrace.StoppedThread, *value: int) -> int:
    """Make these segments again. A negative number is an error."""
    for number, low, high in zip(*[iter(value)] * 3, strict=True):
        base = low >> 16 & 0xFFFF | (high & 0xFF) << 16 | high & 0xFF000000
        limit = low & 0xFFFF | high & 0xF0000
        # In this order: 32 bits, contents (2), read only, limit in pages, not present, usable, 64 bits.
        flags = (
            *(high >> 22 & 1, high >> 10 & 1, high >> 11 & 1, ~high >> 9 & 1),
            *(high >> 23 & 1, ~high >> 15 & 1, high >> 20 & 1, high >> 21 & 1),
        )
        entry = _USER_ENTRY.pack(number, base, limit, sum(flag << bit for bit, flag in enumerate(flags)))
        with thread.lent(entry) as address:
            if (found := _modify(thread, _WRITE, address, len(entry))) < 0:
                return found
    return 0


def _modify(thread: ptrace.StoppedThread, *arguments: int) -> int:
    # The kernel returns 32 bits.
    return ctypes.c_int32(thread.system_call(_MODIFY_LDT, *arguments)).value
