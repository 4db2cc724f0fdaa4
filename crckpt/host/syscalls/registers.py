"""A stopped thread's registers and system call convention. Source: syscall(2).

The registers and their names are python-ptrace's; the conventions are ours. Another machine is another entry of
MACHINES.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Any, Final

from msgspec import Struct

from crckpt.host.syscalls.ptrace_requests import get_registers, load, set_registers

# Loaded now, not while a thread is stopped.
_CPU: Final = load("binding.cpu")
_COMPAT_CODE: Final = 0x23  # __USER32_CS: the code segment of 32-bit programs


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


class Machine(Struct, frozen=True):
    """Registers: `number` has a system call's number as the kernel keeps it, `result` it on entry, then its result."""

    number: str
    result: str
    native: Convention
    compat: Convention


MACHINES: Final = {
    "x86_64": Machine(
        # The kernel overwrites rax with the result. orig_rax still tells it which call to restart, if any.
        number="orig_rax",
        result="rax",
        # `syscall`, AUDIT_ARCH_X86_64; `int 0x80`, AUDIT_ARCH_I386
        native=Convention(b"\x0f\x05", 0xC000003E, ("rdi", "rsi", "rdx", "r10", "r8", "r9"), 64),
        compat=Convention(b"\xcd\x80", 0x40000003, ("rbx", "rcx", "rdx", "rsi", "rdi", "rbp"), 32),
    )
}
_MACHINE: Final = MACHINES.get(platform.machine(), MACHINES["x86_64"])


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
        return _MACHINE.compat if self.is_compat else _MACHINE.native

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
        return ctypes.c_int32(getattr(self._values, _MACHINE.number) & 0xFFFFFFFF).value

    @property
    def first_argument(self) -> int:
        """The first argument of the system call that it is in."""
        return int(getattr(self._values, self.convention.arguments[0]))

    @property
    def result(self) -> int:
        """The result of the system call that it is in or was in."""
        width = ctypes.c_int32 if self.is_compat else ctypes.c_int64
        return int(width(getattr(self._values, _MACHINE.result)).value)

    @result.setter
    def result(self, value: int) -> None:
        setattr(self._values, _MACHINE.result, value & 2**64 - 1)

    def forget_call(self) -> None:
        """Let it be in no system call: the kernel skips the call that it enters, and restarts none."""
        setattr(self._values, _MACHINE.number, 2**64 - 1)

    def set_call(self, address: int, number: int, arguments: tuple[int, ...]) -> None:
        """Let it make this system call by the instruction at this address."""
        self.instruction_pointer = address
        self.result = number
        # Otherwise the kernel would restart, from here, the call that it was stopped in.
        self.forget_call()
        for name, value in zip(self.convention.arguments, arguments, strict=False):
            setattr(self._values, name, value & 2**64 - 1)


def is_supported() -> bool:
    """Return whether this machine has a table."""
    return platform.machine() in MACHINES
