"""What real processes share: memory, open files, epolls whose file was closed."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from small_programs import WAITS, free_pid, program

from crckpt.host import proc
from crckpt.host.proc.fd import read_targets
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


@contextmanager
def own_descriptors() -> Iterator[None]:
    """Afterwards, close what was opened meanwhile."""
    before = {fd for fd, _ in read_targets(os.getpid())}
    try:
        yield
    finally:
        for fd, _ in read_targets(os.getpid()):
            if fd not in before:
                os.close(fd)


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
    assert list(find_sharers([held], frozenset({os.getpid()}))) == []
    with program(WAITS, reading) as process:
        assert list(find_sharers([held], frozenset({os.getpid()}))) == [(held, process.pid)]
        assert list(find_sharers([held], frozenset({os.getpid(), process.pid}))) == []


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


def two_eventfds() -> tuple[int, int]:
    return os.eventfd(0), os.eventfd(0)


def two_pipes() -> tuple[int, int]:
    (watched, _), (other, _) = os.pipe(), os.pipe()
    return watched, other


def two_sockets() -> tuple[int, int]:
    return socket.socket().detach(), socket.socket().detach()


@pytest.mark.parametrize("open_two", [two_eventfds, two_pipes, two_sockets])
def test_an_epoll_of_a_closed_file_whose_number_is_that_of_another(open_two: Callable[[], tuple[int, int]]) -> None:
    """All eventfds have one inode, each socket its own."""
    left, right = socket.socketpair()
    with own_descriptors(), left, right, select.epoll() as epoll:
        watched, other = open_two()
        epoll.register(watched)
        socket.send_fds(left, [b"."], [watched])
        os.dup2(other, watched)
        (found,) = find_escaped_epolls(proc.descriptors(os.getpid()))
        assert found.fd == epoll.fileno()
        # Both files were added by one number.
        epoll.register(watched)
        (found,) = find_escaped_epolls(proc.descriptors(os.getpid()))
        assert found.fd == epoll.fileno()


def test_an_epoll_of_two_open_files_that_were_added_by_one_number() -> None:
    with own_descriptors(), select.epoll() as epoll:
        watched, other = two_eventfds()
        epoll.register(watched)
        os.dup(watched)
        os.dup2(other, watched)
        epoll.register(watched)
        assert find_escaped_epolls(proc.descriptors(os.getpid())) == ()


def test_an_epoll_that_watches_a_file_no_longer_when_it_is_compared() -> None:
    """A server goes on while its descriptors are read."""
    with own_descriptors(), select.epoll() as epoll:
        watched, other = two_eventfds()
        epoll.register(watched)
        read_before = proc.descriptors(os.getpid())
        os.dup2(other, watched)
        assert find_escaped_epolls(read_before) == ()
        os.close(watched)
        assert find_escaped_epolls(read_before) == ()
        without = tuple(found for found in read_before if found.fd != watched)
        assert find_escaped_epolls(without) == ()
        epoll.close()
        assert find_escaped_epolls(without) == ()
