"""What real processes share: memory, open files, epolls whose file was closed."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Iterator

import pytest
from small_programs import WAITS, free_pid, program

from crckpt.host import proc
from crckpt.host.syscalls.kcmp import find_escaped_epolls, find_sharers, is_same_file, is_sharing_memory

CLONE_VM = 0x100
SHARES_MEMORY = f"""
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


def test_a_clone_shares_memory_and_a_fork_does_not(waiting: subprocess.Popen[bytes]) -> None:
    with program(SHARES_MEMORY) as process:
        (child,) = proc.children(process.pid)
        assert is_sharing_memory(process.pid, child)
        os.kill(child, 9)
    assert not is_sharing_memory(os.getpid(), waiting.pid)
    assert not is_sharing_memory(os.getpid(), free_pid())


def test_an_inherited_descriptor_is_the_same_open_file(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    with program(WAITS, reading) as process:
        assert is_same_file(process.pid, reading, reading)
        assert not is_same_file(process.pid, reading, writing)
        assert not is_same_file(process.pid, 1000, reading)


def test_who_else_has_an_open_file(pipe: tuple[int, int]) -> None:
    reading, _ = pipe
    (held,) = (found for found in proc.descriptors(os.getpid()) if found.fd == reading)
    assert find_sharers(held, frozenset({os.getpid()})) == ()
    with program(WAITS, reading) as process:
        assert find_sharers(held, frozenset({os.getpid()})) == (process.pid,)
        assert find_sharers(held, frozenset({os.getpid(), process.pid})) == ()


def test_an_epoll_that_watches_a_file_that_is_closed() -> None:
    """The open file lives on in the queue of a socket, say."""
    left, right = socket.socketpair()
    watched = os.eventfd(0)
    with left, right, select.epoll() as epoll:
        epoll.register(watched)
        assert find_escaped_epolls(proc.descriptors(os.getpid())) == ()
        socket.send_fds(left, [b"."], [watched])
        os.close(watched)
        (found,) = find_escaped_epolls(proc.descriptors(os.getpid()))
        assert found.fd == epoll.fileno()


def test_an_epoll_whose_file_has_another_number_is_not_escaped() -> None:
    watched = os.eventfd(0)
    with select.epoll() as epoll:
        epoll.register(watched)
        kept = os.dup(watched)
        os.close(watched)
        assert find_escaped_epolls(proc.descriptors(os.getpid())) == ()
        os.close(kept)
