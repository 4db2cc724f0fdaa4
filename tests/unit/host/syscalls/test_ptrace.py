"""A system call is made in another process, which notices nothing; or it is left alone, with the reason."""

from __future__ import annotations

import errno
import os
import platform
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from other_user import as_user
from small_programs import free_pid
from target_processes import StatementRunner, state, tracer, wait_for

from crckpt.host import proc
from crckpt.host.proc.status import read_status
from crckpt.host.syscalls.ptrace import Refused, stopped

# As of x86-64.
GETPID, OPEN, CLOSE, PIPE, MMAP = 39, 2, 3, 22, 9
ROOT = 0

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to trace"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="only for x86-64"),
]


def refusal(pid: int, identity: proc.Identity | None = None) -> None:
    """Stop the process and release it."""
    with stopped(pid, identity=identity):
        pass


def is_unharmed(target: StatementRunner) -> bool:
    """Return whether the process runs without a tracer, and blocks no signal."""
    wait_for(lambda: tracer(target.pid) == 0, "its tracer to be gone")
    assert int(read_status(target.pid, target.pid)["SigBlk"], 16) == 0
    return target.do("result = 7") == 7 and state(target.pid) in "SR"


def test_system_calls_run_in_the_other_process(target: StatementRunner) -> None:
    def check() -> None:
        with stopped(target.pid) as thread:
            assert thread.tid == target.pid
            assert thread.system_call(GETPID) == target.pid
            assert thread.system_call(CLOSE, 9999) == -errno.EBADF
            # Six arguments: a page for reading and writing.
            assert thread.system_call(MMAP, 0, 4096, 3, 0x22, 2**64 - 1, 0) > 0

    as_user(check, ROOT)
    assert is_unharmed(target)


def test_memory_lent_for_injected_calls_is_restored(target: StatementRunner, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    name = os.fsencode(tmp_path / "file") + b"\0"

    def read(address: int) -> bytes:
        with Path(f"/proc/{target.pid}/mem").open("rb") as memory:
            memory.seek(address)
            return memory.read(len(name))

    def check() -> None:
        with stopped(target.pid) as thread:
            with thread.lent(b"\x55" * 2000) as address:
                pass
            before = read(address)
            with thread.lent(name) as address:
                assert read(address) == name
                descriptor = thread.system_call(OPEN, address, os.O_RDONLY)
            assert str(Path(f"/proc/{target.pid}/fd/{descriptor}").readlink()) == str(tmp_path / "file")
            assert name not in read(address)
            assert before != b"\x55" * len(name)
            assert thread.system_call(CLOSE, descriptor) == 0

    as_user(check, ROOT)
    assert is_unharmed(target)


def test_failed_injected_call_leaves_the_process_unchanged(target: StatementRunner) -> None:
    def check() -> None:
        with suppress(KeyError), stopped(target.pid) as thread:
            thread.system_call(GETPID)
            raise KeyError
        assert tracer(target.pid) == 0

    as_user(check, ROOT)
    assert is_unharmed(target)


def test_other_process_with_the_pid_is_released(target: StatementRunner) -> None:
    found = proc.read_process(target.pid)
    assert found is not None

    def check() -> None:
        with pytest.raises(Refused, match="another process has its PID now"):
            refusal(target.pid, replace(found.identity, start=found.start + 1))
        assert tracer(target.pid) == 0
        refusal(target.pid, found.identity)

    as_user(check, ROOT)
    assert is_unharmed(target)


def test_process_that_cannot_be_stopped_is_refused(zombie: int) -> None:
    with pytest.raises(Refused, match=f"PID {zombie}: it has ended"):
        refusal(zombie)
    ended_pid = free_pid()
    with pytest.raises(Refused, match=f"there is no process {ended_pid}"):
        refusal(ended_pid)
    for kernel in (process for pid in range(2, 9) if (process := proc.read_process(pid)) and process.is_kernel_thread):
        with pytest.raises(Refused, match=f"PID {kernel.pid} is a kernel thread"):
            refusal(kernel.pid)
