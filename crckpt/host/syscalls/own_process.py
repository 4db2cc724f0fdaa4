"""Attributes, capabilities, namespaces, mounts and keyring of our own process, and forks of it.

Sources: prctl(2), capset(2), clone(2), setns(2), unshare(2), mount(2), pivot_root(2), keyctl(2), session-keyring(7).
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.host.syscalls.libc import LIBC, NUMBERS, check, syscall

SET_PDEATHSIG, SET_DUMPABLE, SET_KEEPCAPS = 1, 4, 8
SET_SECCOMP, SECCOMP_MODE_STRICT, SECCOMP_MODE_FILTER = 22, 1, 2
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
SET_NO_NEW_PRIVS: Final = 38
SET_IO_FLUSHER: Final = 57
SET_MDWE, GET_MDWE = 65, 66
SET_MEMORY_MERGE: Final = 67

_VERSION_3: Final = 0x20080522
_CLONE_FILES: Final = 0x400
CLONE_NEWTIME: Final = 0x80
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000

# PyDLL keeps Python's own lock: a child of clone3 has no other thread to get it back from.
_LOCKED_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
_GET_ID, _JOIN, _DESCRIBE = 0, 1, 6
_SESSION: Final = -3  # KEY_SPEC_SESSION_KEYRING
# The longest name (4095 bytes and a zero, add_key(2)), and before it "keyring;", two ids and the permissions.
# The kernel writes nothing into a smaller buffer, and reports no error.
_MOST: Final = 4096 + 64
# linux/mount.h
BIND: Final = 4096
_RDONLY: Final = 1
_REMOUNT: Final = 32
_DETACH: Final = 2


def is_child_subreaper() -> bool:
    """Return whether orphaned descendants become our children."""
    answer = ctypes.c_int()
    prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return bool(answer.value)


def set_child_subreaper(*, enabled: bool) -> None:
    """Let orphaned descendants become our children, or not."""
    prctl(_SET_CHILD_SUBREAPER, int(enabled))


def drop_capability(number: int) -> None:
    """Drop a capability from our bounding set. Nothing happens if the kernel has no such capability. Raises OSError."""
    # 0: dropped already. -1: the kernel has no such capability, for which dropping would fail.
    if LIBC.prctl(_CAPBSET_READ, ctypes.c_ulong(number), 0, 0, 0) == 1:
        prctl(_CAPBSET_DROP, number)


def memory_map_size() -> int:
    """Bytes of the structure with which a restore describes a process's memory. Raises OSError."""
    size = ctypes.c_uint()
    prctl(_SET_MM, _SET_MM_MAP_SIZE, ctypes.byref(size))
    return size.value


def prctl(option: int, *arguments: object) -> int:
    """Make a call of prctl(2). Raises OSError."""
    # The kernel reads four words of 64 bits, and refuses many options if those that they do not use are not 0.
    words = (ctypes.c_ulong(word) if isinstance(word, int) else word for word in (*arguments, 0, 0, 0, 0)[:4])
    return check(LIBC.prctl(option, *words))


def set_capabilities(capabilities: int) -> None:
    """Give this thread exactly these (a set of bits), permitted and effective, none inheritable. Raises OSError."""
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32 & 0xFFFFFFFF
    # PID 0 is the caller. Version 3 splits each set in two: bits 0 to 31 of all three sets come first.
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    check(LIBC.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)))


def setns(namespace: int) -> None:
    """Join the namespace of an open descriptor. Raises OSError."""
    check(LIBC.setns(namespace, 0))


def unshare(kinds: int) -> None:
    """Leave these namespaces (CLONE_NEW...) for new ones. Raises OSError."""
    check(LIBC.unshare(kinds))


def fork_with_pid(pid: int) -> int:
    """Fork a child that has this PID; return its PID, and 0 in the child. Raises OSError."""
    # set_tid needs Linux 5.5, and CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. EEXIST: the PID is in use.
    wanted = ctypes.c_int(pid)
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size
    return _clone(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1)


def fork_with_same_descriptors() -> int:
    """Fork a child with which we share all descriptors from now on; return its PID, and 0 in the child.

    Nothing that one of them opened is closed by its end as long as the other lives. Call it before there are threads.
    Raises OSError.
    """
    return _clone(_CLONE_FILES, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)


def _clone(*arguments: int) -> int:
    words = struct.pack(f"={len(arguments)}Q", *arguments)
    return check(_LOCKED_LIBC.syscall(NUMBERS["clone3"], ctypes.c_char_p(words), len(words)))


class SessionKeyring(Struct, frozen=True):
    """Our session keyring: its serial number and the user that it belongs to."""

    id: int
    uid: int


def own_session() -> SessionKeyring | None:
    """Our session keyring; None if the kernel has no keyrings.

    Without one, we have the session keyring of our user from now on, and our children, too: the kernel installs it
    when it is looked for (security/keys/process_keys.c, lookup_user_key).
    """
    buffer = ctypes.create_string_buffer(_MOST)
    with suppress(OSError):
        serial = syscall("keyctl", _GET_ID, _SESSION, 0)  # 0: create none
        # type;uid;gid;perm;name, as of keyctl_describe(3)
        syscall("keyctl", _DESCRIBE, serial, buffer, _MOST)
        return SessionKeyring(serial, int(buffer.value.decode(errors="replace").split(";", 2)[1]))
    return None


def join_new() -> None:
    """Give this thread, and its children, a new, empty session keyring. Raises OSError."""
    try:
        syscall("keyctl", _JOIN, None)
    except OSError as error:
        raise OSError(error.errno, f"cannot make a session keyring: {error.strerror}") from error


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
