"""python-ptrace's binding, with types: the general registers of a stopped thread, and requests of ptrace(2).

It has the registers and their names for each architecture, and reads them as that needs (GETREGS or GETREGSET). Errors
are OSError here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from crckpt.host.syscalls.python_ptrace import load

_binding: Final = load("binding")
_cpu: Final = load("binding.cpu")
_PtraceError: Final = load("error").PtraceError

INSTRUCTION_POINTER: Final[str] = _cpu.CPU_INSTR_POINTER
STACK_POINTER: Final[str] = _cpu.CPU_STACK_POINTER


def get_registers(tid: int) -> Any:
    """Read the general registers of a stopped thread: a ctypes structure, by their names. Raises OSError."""
    with _os_errors():
        return _binding.ptrace_getregs(tid)


def set_registers(tid: int, registers: Any) -> None:
    """Write the general registers of a stopped thread. Raises OSError."""
    with _os_errors():
        _binding.ptrace_setregs(tid, registers)


def continue_thread(tid: int, signal: int = 0) -> None:
    """Let a stopped thread run on; deliver `signal`. Raises OSError."""
    with _os_errors():
        _binding.ptrace_cont(tid, signal)


def continue_to_system_call(tid: int, signal: int = 0) -> None:
    """Let a stopped thread run until it enters or leaves a system call; deliver `signal`. Raises OSError."""
    with _os_errors():
        _binding.ptrace_syscall(tid, signal)


def set_options(tid: int, options: int) -> None:
    """Replace the options with which a stopped thread is traced (PTRACE_O_...). Raises OSError."""
    with _os_errors():
        _binding.ptrace_setoptions(tid, options)


def detach(tid: int) -> None:
    """Stop tracing a stopped thread; it runs on. Raises OSError."""
    with _os_errors():
        _binding.ptrace_detach(tid)


@contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except _PtraceError as error:
        raise OSError(error.errno, os.strerror(error.errno)) from None
