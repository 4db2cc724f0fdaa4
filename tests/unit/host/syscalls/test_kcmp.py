"""Memory and open files that real processes share."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from small_programs import WAIT_STATEMENTS, free_pid, program

from crckpt.host import proc
from crckpt.host.proc import status
from crckpt.host.syscalls.kcmp import VM, compare, find_sharers, is_same_file

CLONE_VM = 0x100
PROGRAM_THAT_SHARES_ITS_MEMORY = f"""
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
stack = libc.mmap(None, 1 << 20, 3, 0x22, -1, ctypes.c_long(0))
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
child = libc.clone(pause, ctypes.c_void_p(stack + (1 << 20) - 64), {CLONE_VM} | 17, None)
print(child, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_clone_shares_memory_and_fork_does_not(waiting_program: subprocess.Popen[bytes]) -> None:
    with program(PROGRAM_THAT_SHARES_ITS_MEMORY) as process:
        (child,) = proc.children(process.pid)
        assert compare(process.pid, child, VM) == 0
        os.kill(child, 9)
    assert compare(os.getpid(), waiting_program.pid, VM) != 0
    assert compare(os.getpid(), free_pid(), VM) != 0


def test_inherited_descriptor_is_the_same_open_file(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    with program(WAIT_STATEMENTS, reading) as process:
        assert is_same_file(process.pid, reading, reading)
        assert not is_same_file(process.pid, reading, writing)
        assert not is_same_file(process.pid, 1000, reading)


def test_sharers_of_an_open_file_are_found(pipe: tuple[int, int]) -> None:
    reading, _ = pipe
    (held,) = (found for found in proc.descriptors(os.getpid()) if found.fd == reading)
    assert list(find_sharers([held], frozenset({os.getpid()}))) == []
    with program(WAIT_STATEMENTS, reading) as process:
        assert list(find_sharers([held], frozenset({os.getpid()}))) == [(held, process.pid)]
        assert list(find_sharers([held], frozenset({os.getpid(), process.pid}))) == []


def test_search_among_many_descriptors_takes_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each descriptor of a file is compared with every other, because each may be the same open file."""
    file = tmp_path / "locked"
    file.touch()
    opens = f"opened = [os.open({str(file)!r}, os.O_RDONLY) for _ in range(900)]"
    with ExitStack() as opened, program(f"{opens}\n{WAIT_STATEMENTS}"):
        for _ in range(900):
            opened.callback(os.close, os.open(file, os.O_RDONLY))
        held = [found for found in proc.descriptors(os.getpid()) if found.target == str(file)]
        monkeypatch.setattr(status, "OWN_USERS_S", 0.05)
        began = time.monotonic()
        assert list(find_sharers(held, frozenset({os.getpid()}))) == []
        assert time.monotonic() - began < 0.5
