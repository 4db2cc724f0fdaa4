"""The registers of a stopped thread, by their use, and its signal mask."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from other_user import as_user
from target_processes import StatementRunner, wait_for

from crckpt.host.proc.maps import read_maps
from crckpt.host.proc.status import read_status
from crckpt.host.syscalls import ptrace_requests
from crckpt.host.syscalls.registers import ThreadRegisters, is_supported

ROOT = 0
READ, ERESTARTSYS = 0, 512  # as of x86-64

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to trace"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="only for x86-64"),
]


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """Stopped for us, in its read: only in a process that ends then."""
    wait_for(lambda: Path(f"/proc/{pid}/syscall").read_text().startswith(f"{READ} "), "it to read")
    ptrace_requests.seize(pid)
    ptrace_requests.interrupt(pid)
    os.waitpid(pid, 0x40000000)  # __WALL
    try:
        yield
    finally:
        ptrace_requests.call("detach", pid)


def test_registers_of_a_thread_show_that_it_waits_in_read(target: StatementRunner) -> None:
    stack = next(each for each in read_maps(target.pid) if each.path == "[stack]")

    def check() -> None:
        assert is_supported()
        with traced(target.pid):
            found = ThreadRegisters.read(target.pid)
        assert (found.call, found.first_argument, found.result) == (READ, 0, -ERESTARTSYS)
        assert not found.is_compat
        assert found.convention.instruction == b"\x0f\x05"
        assert stack.start <= found.stack_pointer < stack.end
        assert any(each.start <= found.instruction_pointer < each.end for each in read_maps(target.pid))

    as_user(check, ROOT)
    assert target.do("result = 3") == 3


def test_registers_can_be_changed_and_restored(target: StatementRunner) -> None:
    def check() -> None:
        with traced(target.pid):
            found = ThreadRegisters.read(target.pid)
            changed = found.copy()
            changed.set_call(0x1234, 39, (1, 2, 3, 4, 5, 2**64 - 6))
            assert (changed.instruction_pointer, changed.result, changed.first_argument) == (0x1234, 39, 1)
            assert changed.call == -1
            assert found.call == READ
            changed.write(target.pid)
            assert ThreadRegisters.read(target.pid).instruction_pointer == 0x1234
            found.write(target.pid)

    as_user(check, ROOT)
    assert target.do("result = 4") == 4


def test_signal_mask_can_be_read_and_set(target: StatementRunner) -> None:
    assert target.do("import signal; result = len(signal.pthread_sigmask(0, [signal.SIGUSR1]))") == 0

    def check() -> None:
        with traced(target.pid):
            mask = ptrace_requests.get_signal_mask(target.pid)
            assert mask == 1 << signal.SIGUSR1 - 1
            ptrace_requests.set_signal_mask(target.pid, mask | 1 << signal.SIGUSR2 - 1)
            blocked = int(read_status(target.pid, target.pid)["SigBlk"], 16)
            assert blocked == mask | 1 << signal.SIGUSR2 - 1
            ptrace_requests.set_signal_mask(target.pid, mask)

    as_user(check, ROOT)
    assert Path(f"/proc/{target.pid}").exists()


def test_untraced_thread_is_an_os_error(target: StatementRunner) -> None:
    with pytest.raises(ProcessLookupError):
        ptrace_requests.interrupt(target.pid)
    with pytest.raises(ProcessLookupError):
        ThreadRegisters.read(target.pid)
