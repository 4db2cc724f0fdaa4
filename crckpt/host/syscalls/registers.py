"""A stopped thread's registers and system call convention, one table for each machine.

Sources: asm/ptrace.h, syscall(2).

Another machine is another entry of MACHINES. python-ptrace has such tables, too, but cannot be used: importing it runs
`ldconfig` (12 ms), and its licence is GPL 2.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

from msgspec import Struct

GETREGS: Final = 12
SETREGS: Final = 13
_COMPAT_CODE: Final = 0x23  # the code segment of 32-bit programs


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
    """The names of the registers in the kernel's order, and which of them has what.

    `number` is the register of a system call's number as the kernel keeps it, `result` that of its number on entry
    and of its result.
    """

    registers: tuple[str, ...]
    instruction_pointer: str
    stack_pointer: str
    number: str
    result: str
    native: Convention
    compat: Convention


MACHINES: Final = {
    "x86_64": Machine(
        registers=(
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
            *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        ),
        instruction_pointer="rip",
        stack_pointer="rsp",
        number="orig_rax",
        result="rax",
        native=Convention(b"\x0f\x05", 0xC000003E, ("rdi", "rsi", "rdx", "r10", "r8", "r9"), 64),
        compat=Convention(b"\xcd\x80", 0x40000003, ("rbx", "rcx", "rdx", "rsi", "rdi", "rbp"), 32),
    )
}
_MACHINE: Final = MACHINES.get(platform.machine(), MACHINES["x86_64"])


class ThreadRegisters(ctypes.Structure):
    """The general registers of a thread, as ptrace(2) fills them."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in _MACHINE.registers)

    @property
    def is_compat(self) -> bool:
        """Whether the thread runs 32-bit code."""
        return bool(self.cs == _COMPAT_CODE)

    @property
    def convention(self) -> Convention:
        """How the thread makes system calls."""
        return _MACHINE.compat if self.is_compat else _MACHINE.native

    @property
    def instruction_pointer(self) -> int:
        """Where it executes next."""
        return int(getattr(self, _MACHINE.instruction_pointer))

    @instruction_pointer.setter
    def instruction_pointer(self, address: int) -> None:
        setattr(self, _MACHINE.instruction_pointer, address)

    @property
    def stack_pointer(self) -> int:
        """The top of its stack."""
        return int(getattr(self, _MACHINE.stack_pointer))

    @property
    def call(self) -> int:
        """The number of the system call that it is in; negative if it is in none."""
        return ctypes.c_int32(getattr(self, _MACHINE.number) & 0xFFFFFFFF).value

    @property
    def first_argument(self) -> int:
        """Of the system call that it is in."""
        return int(getattr(self, self.convention.arguments[0]))

    @property
    def result(self) -> int:
        """Of the system call that it is in or was in."""
        width = ctypes.c_int32 if self.is_compat else ctypes.c_int64
        return int(width(getattr(self, _MACHINE.result)).value)

    @result.setter
    def result(self, value: int) -> None:
        setattr(self, _MACHINE.result, value & 2**64 - 1)

    def forget_call(self) -> None:
        """Let it be in no system call: the kernel skips the call that it enters, and restarts none."""
        setattr(self, _MACHINE.number, 2**64 - 1)

    def set_call(self, address: int, number: int, arguments: tuple[int, ...]) -> None:
        """Let it make this system call by the instruction at this address."""
        self.instruction_pointer = address
        self.result = number
        # Otherwise the kernel would restart, from here, the call that it was stopped in.
        self.forget_call()
        for name, value in zip(self.convention.arguments, arguments, strict=False):
            setattr(self, name, value & 2**64 - 1)


def is_supported() -> bool:
    """Whether this machine has a table."""
    return platform.machine() in MACHINES
