"""A stopped thread's registers and system call convention, and the restart of its interrupted call (x86-64).

The registers and their names are python-ptrace's; the conventions, of x86-64 and 32-bit programs on it, are ours.
When a thread is stopped, the kernel leaves the result of its interrupted call in its registers. `restarting_result`
corrects it after crckpt has attached to a process; crckpt/tracking/preload/restart.c, with the same table, does so in
CRIU. Source: syscall(2).
"""

from __future__ import annotations

import ctypes
import errno
import platform
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from crckpt.host.syscalls.ptrace_requests import get_registers, load, set_registers

# Loaded now, not while a thread is stopped.
_CPU: Final = load("binding.cpu")
_COMPAT_CODE: Final = 0x23  # __USER32_CS: the code segment of 32-bit programs

# The kernel overwrites rax with the result. orig_rax still tells it which call to restart, if any.
_NUMBER, _RESULT = "orig_rax", "rax"
SOCKET: Final = -1
"""The call's first argument must be a socket."""
_NO_HANDLER: Final = -514  # ERESTARTNOHAND: made again, unless a handler runs
_RESTART_BLOCK: Final = -516  # ERESTART_RESTARTBLOCK: made again by restart_syscall, unless a handler runs
# By `is_compat`. A thread that was stopped before is in restart_syscall; only the kernel knows which call that
# continues.
_RESTART_SYSCALL: Final = {False: 219, True: 0}


class Convention(Struct, frozen=True):
    """How a program makes system calls: by which `instruction`, with the `arguments` in which registers.

    `architecture` is its number in linux/audit.h, `bits` the width of its registers.
    """

    instruction: bytes
    architecture: int
    arguments: tuple[str, ...]
    bits: int

    @property
    def widest(self) -> int:
        """The largest number that a register holds."""
        return (1 << self.bits) - 1


# `syscall`, AUDIT_ARCH_X86_64; `int 0x80`, AUDIT_ARCH_I386
_NATIVE: Final = Convention(b"\x0f\x05", 0xC000003E, ("rdi", "rsi", "rdx", "r10", "r8", "r9"), 64)
_COMPAT: Final = Convention(b"\xcd\x80", 0x40000003, ("rbx", "rcx", "rdx", "rsi", "rdi", "rbp"), 32)


class ThreadRegisters:
    """The general registers of a stopped thread."""

    def __init__(self, values: Any) -> None:
        self._values = values

    @classmethod
    def read(cls, tid: int) -> ThreadRegisters:
        """Read them from a stopped thread. Raises OSError."""
        return cls(get_registers(tid))

    def write(self, tid: int) -> None:
        """Write them to a stopped thread. Raises OSError."""
        set_registers(tid, self._values)

    def copy(self) -> ThreadRegisters:
        """Other registers with the same values."""
        return ThreadRegisters(type(self._values).from_buffer_copy(self._values))

    @property
    def is_compat(self) -> bool:
        """Whether the thread runs 32-bit code."""
        return bool(self._values.cs == _COMPAT_CODE)

    @property
    def convention(self) -> Convention:
        """The convention by which the thread makes system calls."""
        return _COMPAT if self.is_compat else _NATIVE

    @property
    def instruction_pointer(self) -> int:
        """The address at which it executes next."""
        return int(getattr(self._values, _CPU.CPU_INSTR_POINTER))

    @instruction_pointer.setter
    def instruction_pointer(self, address: int) -> None:
        setattr(self._values, _CPU.CPU_INSTR_POINTER, address)

    @property
    def stack_pointer(self) -> int:
        """The top of its stack."""
        return int(getattr(self._values, _CPU.CPU_STACK_POINTER))

    @property
    def call(self) -> int:
        """The number of the system call that it is in; negative if it is in none."""
        return ctypes.c_int32(getattr(self._values, _NUMBER) & 0xFFFFFFFF).value

    @property
    def first_argument(self) -> int:
        """The first argument of the system call that it is in."""
        return int(getattr(self._values, self.convention.arguments[0]))

    @property
    def result(self) -> int:
        """The result of the system call that it is in or was in."""
        width = ctypes.c_int32 if self.is_compat else ctypes.c_int64
        return int(width(getattr(self._values, _RESULT)).value)

    @result.setter
    def result(self, value: int) -> None:
        setattr(self._values, _RESULT, value & 2**64 - 1)

    def forget_call(self) -> None:
        """Let it be in no system call: the kernel skips the call that it enters, and restarts none."""
        setattr(self._values, _NUMBER, 2**64 - 1)

    def set_call(self, address: int, number: int, arguments: tuple[int, ...]) -> None:
        """Let it make this system call by the instruction at this address."""
        self.instruction_pointer = address
        self.result = number
        # Otherwise the kernel would restart, from here, the call that it was stopped in.
        self.forget_call()
        for name, value in zip(self.convention.arguments, arguments, strict=False):
            setattr(self._values, name, value & 2**64 - 1)


def is_supported() -> bool:
    """Return whether this is the machine whose registers and conventions are known here."""
    return platform.machine() == "x86_64"


class RestartedCall(Struct, frozen=True):
    """A call that returns EINTR without an effect: its numbers (-1: none), and the first argument that it must have."""

    name: str
    number: int
    compat: int
    only: int = 0


# These return EINTR after a mere stop, without a handler (signal(7)); on a socket, if it has a timeout (SO_RCVTIMEO,
# SO_SNDTIMEO). Other files are left out: a FUSE server may have done its part of the call.
RESTARTED_CALLS: Final = (
    # Events stay in the set until they are returned.
    RestartedCall("epoll_wait", 232, 256),
    RestartedCall("epoll_pwait", 281, 319),
    RestartedCall("epoll_pwait2", 441, 441),
    # All operations are done, or none.
    RestartedCall("semop", 65, -1),
    RestartedCall("semtimedop", 220, 420),
    RestartedCall("ipc: semop", -1, 117, 1),
    RestartedCall("ipc: semtimedop", -1, 117, 4),
    # It returns a signal that it took.
    RestartedCall("rt_sigtimedwait", 128, 177),
    RestartedCall("rt_sigtimedwait_time64", -1, 421),
    # If they took, read or sent anything, they return its count: EINTR means nothing was done.
    RestartedCall("io_getevents", 208, 247),
    RestartedCall("io_pgetevents", 333, 385),
    RestartedCall("io_pgetevents_time64", -1, 416),
    RestartedCall("read", 0, 3, SOCKET),
    RestartedCall("readv", 19, 145, SOCKET),
    RestartedCall("recvfrom", 45, 371, SOCKET),
    RestartedCall("recvmsg", 47, 372, SOCKET),
    RestartedCall("recvmmsg", 299, 337, SOCKET),
    RestartedCall("recvmmsg_time64", -1, 417, SOCKET),
    RestartedCall("write", 1, 4, SOCKET),
    RestartedCall("writev", 20, 146, SOCKET),
    RestartedCall("sendto", 44, 369, SOCKET),
    RestartedCall("sendmsg", 46, 370, SOCKET),
    RestartedCall("sendmmsg", 307, 345, SOCKET),
    RestartedCall("sendfile", 40, 187, SOCKET),
    RestartedCall("sendfile64", -1, 239, SOCKET),
    RestartedCall("accept", 43, -1, SOCKET),
    RestartedCall("accept4", 288, 364, SOCKET),
    # It waits for the connection that it began. Over TCP it then times out with another errno.
    RestartedCall("connect", 42, 362, SOCKET),
    RestartedCall("socketcall: connect", -1, 102, 3),
    RestartedCall("socketcall: accept", -1, 102, 5),
    RestartedCall("socketcall: send", -1, 102, 9),
    RestartedCall("socketcall: recv", -1, 102, 10),
    RestartedCall("socketcall: sendto", -1, 102, 11),
    RestartedCall("socketcall: recvfrom", -1, 102, 12),
    RestartedCall("socketcall: sendmsg", -1, 102, 16),
    RestartedCall("socketcall: recvmsg", -1, 102, 17),
    RestartedCall("socketcall: accept4", -1, 102, 18),
    RestartedCall("socketcall: recvmmsg", -1, 102, 19),
    RestartedCall("socketcall: sendmmsg", -1, 102, 20),
)


def restarting_result(
    number: int, result: int, first: int, *, is_compat: bool, is_socket: Callable[[int], bool]
) -> int:
    """The result with which the kernel restarts a call of this `number` and `first` argument; often `result` itself.

    The kernel does not restart it if a handler runs.
    """
    # restart_syscall would keep the rest of a timeout, but CRIU cannot save a thread in it.
    if number < 0:
        return result
    if result == _RESTART_BLOCK and number != _RESTART_SYSCALL[is_compat]:
        return _NO_HANDLER
    if result == -errno.EINTR and any(
        # ipc(2) has its version in the upper half of the number.
        is_socket(first) if again.only == SOCKET else again.only in (0, first & 0xFFFF)
        for again in RESTARTED_CALLS
        if number == (again.compat if is_compat else again.number)
    ):
        return _NO_HANDLER
    return result
