"""One look at a live tree sees all of it, in one value."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from crckpt.host import proc
from crckpt.host.observe import Observed, observe

FAMILY = """
import os, mmap, socket, sys, tempfile
file = tempfile.TemporaryFile()
file.truncate(5000)
memory = mmap.mmap(file.fileno(), 4096)
with (
    socket.create_server(("127.0.0.1", 0)) as listener,
    socket.create_connection(listener.getsockname()) as client,
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
):
    child = os.fork()
    if child:
        print(os.fstat(datagram.fileno()).st_ino, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """PID of a parent with one child, and the inode of their datagram socket."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def look(pid: int) -> Observed:
    root, own = proc.read_process(pid), proc.read_process(os.getpid())
    assert root is not None
    assert own is not None
    return observe(root, own)


def test_a_tree_with_sockets_and_a_deleted_file(family: tuple[int, int]) -> None:
    pid, datagram = family
    seen = look(pid)
    assert seen.tree.root.pid == pid
    assert len(seen.tree.pids) == 2
    assert {found.pid for found in seen.descriptors} == {link.pid for link in seen.connections} == set(seen.tree.pids)
    assert len(seen.connections) == 2, "the client's end, held by two processes"
    assert datagram in seen.datagram_sockets
    assert [(size, links) for _, size, links in seen.deleted_maps] == [(5000, 0)] * 2
    own = proc.read_process(os.getpid())
    assert own is not None
    assert (seen.own_namespaces, seen.own_capabilities) == (own.namespaces, proc.effective_capabilities())


def test_a_tree_without_sockets() -> None:
    process = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        seen = look(process.pid)
        assert (seen.connections, seen.datagram_sockets, seen.deleted_maps) == ((), frozenset(), ())
    finally:
        process.kill()
        process.wait()
