"""Hold a process where it is about to make a system call, so that others can do something first."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from crckpt.host.syscalls import ptrace_requests
from crckpt.host.syscalls.ptrace_requests import call_name
from crckpt.host.syscalls.registers import ThreadRegisters, is_supported

# __WALL, PTRACE_O_TRACESYSGOOD, and the stop that this option brings (ptrace(2)).
_ALL_THREADS: Final = 0x40000000
_SYSTEM_CALL_STOPS: Final = 1
_AT_SYSTEM_CALL: Final = signal.SIGTRAP | 0x80


@contextmanager
def held_before_call(pid: int, name: str, begin: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold a process, while the block runs, before its next system call of this name. `begin` lets it go there."""
    if not is_supported():
        pytest.skip(f"registers cannot be read on {platform.machine()}")
    ptrace_requests.seize(pid, _SYSTEM_CALL_STOPS)
    ptrace_requests.interrupt(pid)
    stop = _wait_for_stop(pid, name)
    # Begin only now: a process that has not stopped once would not be held in the call.
    begin()
    while stop != _AT_SYSTEM_CALL or call_name(ThreadRegisters.read(pid).call, platform.machine()) != name:
        ptrace_requests.call("syscall", pid, 0 if stop in (_AT_SYSTEM_CALL, signal.SIGTRAP) else stop)
        stop = _wait_for_stop(pid, name)
    try:
        yield
    finally:
        ptrace_requests.call("detach", pid)


def _wait_for_stop(pid: int, name: str) -> int:
    _, status = os.waitpid(pid, _ALL_THREADS)
    assert os.WIFSTOPPED(status), f"it ended before it called {name}"
    return os.WSTOPSIG(status)
