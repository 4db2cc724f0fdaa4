"""A process with the ids of another process's user, for that process to compare itself with (kcmp(2)).

Others of that user may trace it, read its memory and look into its root directory. So nothing is there to take: it
executes 9 bytes of its own, may make no system call but pause(2), has no descriptor, and the root directory of the
process that it is compared with.

Sources: ptrace(2), "Ptrace access mode checking"; prctl(2); credentials(7); kernel/cred.c: commit_creds; fs/exec.c:
begin_new_exec; linux/seccomp.h; linux/filter.h; elf(5).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

from crckpt.errors import HostCannot, error_text
from crckpt.host import proc
from crckpt.host.opened import opened
from crckpt.host.proc.status import read_status
from crckpt.host.syscalls import own_process
from crckpt.host.syscalls.libc import NUMBERS, syscall

_READY_WITHIN_S: Final = 2.0
_LONGEST_REASON: Final = 1024

# x86-64: mov eax, 34 (pause); syscall; jmp to the first of them.
_PAUSE: Final = 34
_CODE: Final = bytes.fromhex("b822000000 0f05 ebf7")
_PLACE: Final = 0x400000
_HEADERS: Final = 64 + 56
# The header of the file, and that of its only part, which is mapped to be read and executed.
_PROGRAM: Final = (
    struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, _PLACE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    + struct.pack("<IIQQQQQQ", 1, 5, 0, _PLACE, _PLACE, _HEADERS + len(_CODE), _HEADERS + len(_CODE), 4096)
    + _CODE
)
_MFD_EXEC: Final = 0x10
_AT_EMPTY_PATH: Final = 0x1000

# struct sock_filter: load a word of struct seccomp_data (0: the call, 4: its architecture), jump if equal, return.
_FILTERED: Final = struct.Struct("<HBBI")
_LOAD, _JUMP, _RETURN = 0x20, 0x15, 0x06
_ARCHITECTURE: Final = 0xC000003E  # AUDIT_ARCH_X86_64
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


@contextmanager
def comparison_process(pid: int) -> Iterator[int]:
    """Start such a process for process `pid`, of our user and PID namespace, on x86-64; end it after the block.

    It is reaped when our process ends: a tracer could delay that. Raises HostCannot.
    """
    status = read_status(pid)
    uid, gid = (int(status[name].split()[0]) for name in ("Uid", "Gid"))
    try:
        program = os.memfd_create("crckpt-comparison", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError:  # EINVAL: before Linux 6.3
        program = os.memfd_create("crckpt-comparison", os.MFD_CLOEXEC)
    with opened(program):
        os.write(program, _PROGRAM)
        heard, said = os.pipe2(os.O_CLOEXEC)
        with opened(heard):
            with opened(said):
                child = os.fork()
                if child == 0:
                    _become(pid, uid, gid, program, said)
            try:
                if not select.select([heard], [], [], _READY_WITHIN_S)[0]:
                    raise HostCannot(f"a process to compare PID {pid} with did not start within {_READY_WITHIN_S:g} s")
                # It closes its end when it executes its program.
                if why := os.read(heard, _LONGEST_REASON).decode(errors="replace"):
                    raise HostCannot(f"a process to compare PID {pid} with cannot be started: {why}")
                yield child
                if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    raise HostCannot(f"the process that crckpt compares PID {pid} with was ended")
            finally:
                os.kill(child, signal.SIGKILL)


def _become(pid: int, uid: int, gid: int, program: int, said: int) -> NoReturn:
    try:
        os.setsid()
        # A process with our keyring may read its keys. ENOSYS: there are none.
        with suppress(OSError):
            own_process.join_new()
        _enter_root(pid)
        _take_ids(uid, gid)
        own_process.prctl(own_process.SET_PDEATHSIG, signal.SIGKILL)
        os.closerange(0, min(program, said))
        words = (ctypes.c_char_p * 2)(b"crckpt-comparison", None)
        none = (ctypes.c_char_p * 1)(None)
        _forbid_system_calls()
        # Only this makes it traceable, with the new program's memory. If it fails, the filter ends the process.
        syscall("execveat", program, b"", words, none, _AT_EMPTY_PATH)
    except (OSError, ValueError, KeyError) as error:
        os.write(said, error_text(error).encode()[:_LONGEST_REASON] or b"unknown error")
    finally:
        os._exit(1)


def _enter_root(pid: int) -> None:
    # Others of the user may open /proc/PID/root of this process.
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if proc.namespace(pid, "mnt") != proc.namespace("self", "mnt"):
        own_process.setns(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
    os.fchdir(root)
    os.chroot(".")


def _take_ids(uid: int, gid: int) -> None:
    """Take this user and group; have no groups, no capabilities, and no way to get any."""
    # At no moment others of that user can trace this process. A change of ids sets the dumpable flag to
    # fs.suid_dumpable, which can be 1: until it is 0 again, its capabilities protect it.
    own_process.prctl(own_process.SET_KEEPCAPS, 1)
    os.setgroups(())
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    own_process.prctl(own_process.SET_DUMPABLE, 0)
    # With it, root gets no capabilities when it executes a program either.
    own_process.prctl(own_process.SET_NO_NEW_PRIVS, 1)
    own_process.set_capabilities(0)


def _forbid_system_calls() -> None:
    """Allow only execveat(2), for which no file is left after the first, and pause(2)."""
    lines = (
        *((_LOAD, 0, 0, 4), (_JUMP, 0, 3, _ARCHITECTURE), (_LOAD, 0, 0, 0)),
        *((_JUMP, 2, 0, _PAUSE), (_JUMP, 1, 0, NUMBERS["execveat"]), (_RETURN, 0, 0, _KILL), (_RETURN, 0, 0, _ALLOW)),
    )
    text = b"".join(_FILTERED.pack(*line) for line in lines)
    # struct sock_fprog
    content = ctypes.create_string_buffer(text, len(text))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(content)))
    own_process.prctl(own_process.SET_SECCOMP, own_process.SECCOMP_MODE_FILTER, ctypes.addressof(head))
