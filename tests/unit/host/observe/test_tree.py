"""One observation of a live tree contains all of it, in one value."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest
from small_programs import program, read_line

from crckpt.host import proc
from crckpt.host.observe import sockets
from crckpt.host.observe.tree import Observed, observe

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
        print('ready', os.fstat(datagram.fileno()).st_ino, sep='\\n', flush=True)
    sys.stdin.read()
"""

CONNECTING_PROGRAM = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
    listener.bind("")
    listener.listen()
    print(flush=True)
    sys.stdin.readline()
    caller.connect(listener.getsockname())
    accepted, _ = listener.accept()
    print(flush=True)
    sys.stdin.read()
"""

PROGRAM_WITH_A_DESCRIPTOR_IN_FLIGHT = """
import socket, sys
one, other = socket.socketpair()
carrier, receiver = socket.socketpair()
socket.send_fds(carrier, [b"."], [other.fileno()])
other.close()
print(flush=True)
sys.stdin.read()
"""

PROGRAM_WITH_A_CHILD = """
import os, sys
if os.fork():
    print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """PID of a parent with one child, and the inode of their datagram socket."""
    with program(FAMILY) as process:
        yield process.pid, int(read_line(process))


def look(pid: int) -> Observed:
    root, own = proc.read_process(pid), proc.read_process(os.getpid())
    assert root is not None
    assert own is not None
    return observe(root, own)


def test_sockets_and_deleted_maps_of_a_tree_are_observed(family: tuple[int, int]) -> None:
    pid, datagram = family
    observed = look(pid)
    assert observed.tree.root.pid == pid
    assert len(observed.tree.pids) == 2
    assert (
        {found.pid for found in observed.descriptors}
        == {link.pid for link in observed.connections}
        == set(observed.tree.pids)
    )
    assert len(observed.connections) == 2, "the client's end, held by two processes"
    assert datagram in observed.datagram_sockets
    assert [(size, links) for _, size, links in observed.deleted_maps] == [(5000, 0)] * 2
    own = proc.read_process(os.getpid())
    assert own is not None
    assert (observed.own_namespaces, observed.own_capabilities) == (own.namespaces, proc.effective_capabilities())


def test_tree_without_sockets_has_no_connections() -> None:
    process = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        observed = look(process.pid)
        assert (observed.connections, observed.datagram_sockets, observed.deleted_maps) == ((), frozenset(), ())
    finally:
        process.kill()
        process.wait()


def test_socket_to_an_outside_process_that_two_processes_have_is_reported_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, program(PROGRAM_WITH_A_CHILD, theirs.fileno()) as process:
        number = theirs.fileno()
        theirs.close()
        (end,) = look(process.pid).outside_ends
        assert (end.pid, end.fd, end.name) == (process.pid, number, "")


def test_connection_created_during_the_observation_is_not_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    with program(CONNECTING_PROGRAM) as process:

        def meanwhile(_pids: list[int]) -> tuple[sockets.TcpConnection, ...]:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            read_line(process)
            return ()

        # The connection is made between two system calls, which a test without a patch would hit only by chance.
        monkeypatch.setattr(sockets, "tcp_connections", meanwhile)
        assert look(process.pid).outside_ends == ()


def test_socket_that_waits_in_a_queue_of_the_tree_is_not_outside() -> None:
    """CRIU saves the socket with the other messages in the queue."""
    with program(PROGRAM_WITH_A_DESCRIPTOR_IN_FLIGHT) as process:
        assert look(process.pid).outside_ends == ()
