"""A process waits for its missing pages even if no descriptor of its userfaultfd is open any more."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stopped_trees import orphans_adopted
from target_processes import compile_program, list_descriptors
from trees import PYTHON, wait_for

from crckpt.helper.calls.taken_userfaultfd import take_pinned, unpin
from crckpt.host import proc
from crckpt.host.syscalls.userfaultfd import FaultMessage, Kind, MissingPages
from crckpt.ops.lazy.family import is_incomplete

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root alone may enter all processes")

FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
SIZE = 1 << 20
# Prints the address of its memory, and on request the content. Then it forks.
READER = f"""
import ctypes, mmap, os, sys
memory = mmap.mmap(-1, {SIZE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
sys.stdin.readline()
print(memory[0], flush=True)
if os.fork() == 0:
    print("[aio]" in open("/proc/self/maps").read(), flush=True)
    os._exit(0)
os.wait()
sys.stdin.readline()
"""


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A program that reads commands."""
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def say(process: subprocess.Popen[str]) -> None:
    """Let the program continue."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def read(process: subprocess.Popen[str]) -> str:
    """Read a line of the program's output."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def identify(process: subprocess.Popen[str]) -> proc.Identity:
    found = proc.identify(process.pid)
    assert found is not None
    return found


def next_message(missing: MissingPages) -> FaultMessage:
    """Wait for the next message of its userfaultfd."""
    select.select([missing.descriptor], [], [], 30)
    (message,) = missing.read()
    return message


def has_context(pid: int) -> bool:
    """Whether the process has the context that keeps the userfaultfd open."""
    return "[aio]" in Path(f"/proc/{pid}/maps").read_text()


def test_process_waits_for_missing_pages_instead_of_reading_zeros() -> None:
    with running(PYTHON, "-c", READER) as process:
        address = int(read(process))
        descriptors = list_descriptors(process.pid)
        missing, _ = take_pinned(identify(process), FLAGS)
        missing.register(address, address + SIZE)
        missing.close()
        assert list_descriptors(process.pid) == descriptors
        say(process)
        wait_for(lambda: "userfault" in Path(f"/proc/{process.pid}/wchan").read_text(), 60, "it to wait")


def test_process_that_waits_for_missing_pages_continues_once_they_are_released() -> None:
    with running(PYTHON, "-c", READER) as process:
        address = int(read(process))
        missing, context = take_pinned(identify(process), FLAGS)
        missing.register(address, address + SIZE)
        say(process)
        assert next_message(missing).kind is Kind.FAULT
        missing.zero(address)
        assert read(process) == "0"
        # A child has another userfaultfd, and does not inherit the context.
        os.close(next_message(missing).first)
        assert read(process) == "False"
        assert has_context(process.pid)
        unpin(identify(process), context)
        missing.close()
        assert not has_context(process.pid)
        assert not is_incomplete(process.pid)


def test_32_bit_program_gets_and_loses_a_userfaultfd(tmp_path: Path) -> None:
    flags = ("-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-stack-protector", "-fno-pic", "-no-pie")
    try:
        program = compile_program("entered_32.c", tmp_path, *flags)
    except subprocess.CalledProcessError:
        pytest.skip("gcc makes no 32-bit programs here")
    with orphans_adopted(), running(program) as process:
        say(process)
        if read(process) != "":
            pytest.skip("this kernel runs no 32-bit programs")
        missing, context = take_pinned(identify(process), FLAGS)
        assert has_context(process.pid)
        unpin(identify(process), context)
        missing.close()
        assert not has_context(process.pid)
