"""Fields of /proc/PID/status, of real processes and threads."""

from __future__ import annotations

import mmap
import os
import subprocess
import threading
from pathlib import Path

import pytest
from small_programs import WAIT_STATEMENTS, free_pid, program, read

from crckpt.host import proc
from crckpt.host.proc.status import inner_tid, read_bytes, read_status, tracer, tracers

WALL = 0x40000000  # linux/wait.h
TRACED_THREAD = f"""
import ctypes, threading
is_traced = threading.Event()
def trace_me():
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
    is_traced.set()
    threading.Event().wait()
threading.Thread(target=trace_me, daemon=True).start()
is_traced.wait()
{WAIT_STATEMENTS}
"""
"""Its second thread lets its parent trace it."""


def test_own_capabilities_and_boot_id_are_read() -> None:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    assert sum(1 << number for number in proc.effective_capabilities()) == int(line.split()[1], 16)
    assert [len(part) for part in proc.boot_id().split("-")] == [8, 4, 4, 4, 12]


def test_status_of_a_thread_has_its_own_fields() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        status = read_status(os.getpid(), thread.native_id)
        assert (int(status["Pid"]), int(status["Tgid"])) == (thread.native_id, os.getpid())
        assert inner_tid(os.getpid(), thread.native_id) == int(status["NSpid"].split()[-1])
    finally:
        stop.set()
        thread.join()


def test_pid_inside_a_pid_namespace_is_read() -> None:
    argv = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo ready; read line"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unshare:
        assert unshare.stdout is not None
        if not unshare.stdout.readline():
            pytest.skip("no PID namespace can be made here")
        (inside,) = proc.children(unshare.pid)
        assert inner_tid(inside, inside) == 1
        unshare.communicate()


def test_traced_threads_are_found(waiting_program: subprocess.Popen[bytes]) -> None:
    with program(TRACED_THREAD) as process:
        (second,) = (tid for tid in read(process.pid).threads if tid != process.pid)
        assert list(tracers(process.pid)) == [(second, os.getpid())]
        assert tracer(process.pid, process.pid) == 0
        process.kill()
        os.waitpid(second, WALL)  # the process exists until its tracer has waited for the thread
    assert list(tracers(waiting_program.pid)) == []
    assert list(tracers(free_pid())) == []


def test_shared_memory_is_counted_in_bytes() -> None:
    before = read_bytes(os.getpid(), "RssShmem")
    with mmap.mmap(-1, 4 << 20) as memory:
        memory.write(b"x" * (4 << 20))
        assert read_bytes(os.getpid(), "RssShmem") == before + (4 << 20)


def test_missing_fields_of_a_status_count_as_zero() -> None:
    assert read_bytes(os.getpid(), "NoSuchField") == 0
    assert read_bytes(free_pid(), "VmRSS") == 0
    with pytest.raises(FileNotFoundError):
        read_status(free_pid())
