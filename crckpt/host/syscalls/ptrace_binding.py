"""python-ptrace's binding, with types: the general registers of a stopped thread, and requests of ptrace(2).

It has the registers and their names for each architecture, and reads them as that needs (GETREGS or GETREGSET). Errors
are OSError here.
"""

from __future__ import annotations

import os
from typing import Any, Final

from crckpt.host.syscalls.python_ptrace import load

_binding: Final = load("binding")
_cpu: Final = load("binding.cpu")
_PtraceError: Final = load("error").PtraceError

INSTRUCTION_POINTER: Final[str] = _cpu.CPU_INSTR_POINTER
STACK_POINTER: Final[str] = _cpu.CPU_STACK_POINTER


def get_registers(tid: int) -> Any:
    """Read the general registers of a stopped thread: a ctypes structure, by their names. Raises OSError."""
    return _call("getregs", tid)


def set_registers(tid: int, registers: Any) -> None:
    """Write the general registers of a stopped thread. Raises OSError."""
    _call("setregs", tid, registers)


def continue_thread(tid: int, signal: int = 0) -> None:
    """Let a stopped thread run on; deliver `signal`. Raises OSError."""
    _call("cont", tid, signal)


def continue_to_system_call(tid: int, signal: int = 0) -> None:
    """Let a stopped thread run until it enters or leaves a system call; deliver `signal`. Raises OSError."""
    _call("syscall", tid, signal)


def set_options(tid: int, options: int) -> None:
    """Replace the options with which a stopped thread is traced (PTRACE_O_...). Raises OSError."""
    _call("setoptions", tid, options)


def detach(tid: int) -> None:
    """Stop tracing a stopped thread; it runs on. Raises OSError."""
    _call("detach", tid)


def _call(name: str, tid: int, *arguments: Any) -> Any:
    try:
        return getattr(_binding, f"ptrace_{name}")(tid, *arguments)
    except _PtraceError as error:
        raise OSError(error.errno, os.strerror(error.errno)) from None
