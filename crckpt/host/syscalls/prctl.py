"""Attributes of our own process and threads. Source: prctl(2), linux/prctl.h."""

from __future__ import annotations

import ctypes
from typing import Final

from crckpt.host.syscalls.libc import LIBC, check

_SET_DUMPABLE: Final = 4
_SET_SECCOMP: Final = 22
_SECCOMP_MODE_STRICT: Final = 1
_CAPBSET_READ: Final = 23
_CAPBSET_DROP: Final = 24
GET_SECUREBITS: Final = 27
MCE_KILL: Final = 33
MCE_KILL_CLEAR, MCE_KILL_SET = 0, 1
MCE_KILL_LATE, MCE_KILL_EARLY, MCE_KILL_DEFAULT = 0, 1, 2
_SET_MM: Final = 35
_SET_MM_MAP_SIZE: Final = 15
_SET_CHILD_SUBREAPER: Final = 36
_GET_CHILD_SUBREAPER: Final = 37
_SET_NO_NEW_PRIVS: Final = 38
SET_IO_FLUSHER: Final = 57
SET_MDWE, GET_MDWE = 65, 66
SET_MEMORY_MERGE: Final = 67


def is_child_subreaper() -> bool:
    """Return whether orphaned descendants become our children."""
    answer = ctypes.c_int()
    _prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return bool(answer.value)


def set_child_subreaper(*, enabled: bool) -> None:
    """Let orphaned descendants become our children, or not."""
    _prctl(_SET_CHILD_SUBREAPER, int(enabled))


def drop_capability(number: int) -> None:
    """Drop a capability from our bounding set. Nothing happens if the kernel has no such capability. Raises OSError."""
    # 0: dropped already. -1: the kernel has no such capability, for which dropping would fail.
    if LIBC.prctl(_CAPBSET_READ, ctypes.c_ulong(number), 0, 0, 0) == 1:
        _prctl(_CAPBSET_DROP, number)


def set_no_new_privileges() -> None:
    """Let no program that we execute get more rights than we have. Raises OSError."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def forbid_core_dump() -> None:
    """Let the kernel write no core file of us. Raises OSError."""
    _prctl(_SET_DUMPABLE, 0)


def enter_strict_seccomp() -> None:
    """Forbid ourselves all system calls but read, write and the exit of a single thread. Raises OSError."""
    _prctl(_SET_SECCOMP, _SECCOMP_MODE_STRICT)


def memory_map_size() -> int:
    """Bytes of the structure with which a restore describes a process's memory. Raises OSError."""
    size = ctypes.c_uint()
    _prctl(_SET_MM, _SET_MM_MAP_SIZE, ctypes.byref(size))
    return size.value


def _prctl(option: int, *arguments: object) -> int:
    # The kernel reads four words of 64 bits, and refuses many options if those that they do not use are not 0.
    words = (ctypes.c_ulong(word) if isinstance(word, int) else word for word in (*arguments, 0, 0, 0, 0)[:4])
    return check(LIBC.prctl(option, *words))
