"""A stopped thread's registers and system call convention, and the restart of its interrupted call (x86-64).

The registers and their names are python-ptrace's; the conventions, of x86-64 and 32-bit programs on it, are ours.
When a thread is stopped, the kernel leaves the result of its interrupted call in its registers. `restarting_result`
corrects it after crckpt has attached to a process. Source: syscall(2).
"""

from __future__ import annotations

import ctypes
import errno
import platform
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from crckpt.host.syscalls import ptrace_requests
from crckpt.host.syscalls.restarted_calls import RESTARTED_CALLS, SOCKET

# Loaded now, not while a thread is stopped.
_CPU: Final = ptrace_requests.load("binding.cpu")
_COMPAT_CODE: Final = 0x23  # __USER32_CS: the code segment of 32-bit programs

# The kernel overwrites rax with the result. orig_rax still tells it which call to restart, if any.
_NUMBER, _RESULT = "orig_rax", "rax"
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
        return cls(ptrace_requests.call("getregs", tid))

    def write(self, tid: int) -> None:
        """Write them to a stopped thread. Raises OSError."""
        ptrace_requests.call("setregs", tid, self._values)

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
