"""A failed dump or restore names the socket at which CRIU failed by its addresses, as people know it."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command import Crckpt
from stopped_trees import BY_NAME
from trees import PYTHON, started

LISTENING_PROGRAM = """
import os, signal, socket, sys
taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
line = socket.socket(socket.AF_UNIX)
line.bind(sys.argv[1])
line.listen()
os.write(1, b"%d" % line.fileno())
os.dup2(0, 1)
signal.pause()
"""
CONNECTING_PROGRAM = """
import os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
os.write(1, b"%d" % line.fileno())
os.dup2(0, 1)
signal.pause()
"""


@contextmanager
def waiting(program: str, *words: str) -> Iterator[tuple[int, list[int]]]:
    """The PID of a waiting program, and the numbers that it printed."""
    argv = [PYTHON, "-c", program, *words]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen(argv, cwd="/", stdin=null, stdout=pipe, stderr=null, start_new_session=True)
    assert process.stdout is not None
    try:
        with process.stdout as stdout:
            numbers = [int(word) for word in stdout.read().split()]
        yield process.pid, numbers
    finally:
        process.kill()
        process.wait()


def test_error_of_a_failed_dump_names_the_tcp_connection_at_fault(crckpt: Crckpt) -> None:
    """Both ends are in the tree: the end of the named descriptor comes first."""
    with started(BY_NAME["tcp-pair"]) as tree:
        error = crckpt.run("dump", str(tree.pid), "job", "--no-preflight", "--json", status=21).document["error"]
        found = re.search(
            r"\(process (\d+) \(\S+\), fd (\d+) \(tcp (\S+):(\d+) -> (\S+):(\d+) \(established\)\)\)", error["message"]
        )
        assert found, error
        pid, fd, *ends = found.groups()
        ours, theirs = socket_ends(int(pid), int(fd))
        assert ends == [*ours, *theirs]


def socket_ends(pid: int, fd: int) -> tuple[list[str], list[str]]:
    """Local and remote address of an IPv4 connection, as `ss` has them."""
    inode = str(Path(f"/proc/{pid}/fd/{fd}").readlink()).strip("socket:[]")
    shown = subprocess.run(["ss", "-Htne", "state", "established"], capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in shown.splitlines() if f" ino:{inode} " in line)
    _, _, ours, theirs, *_ = line.split()
    return ours.rsplit(":", 1), theirs.rsplit(":", 1)


def test_error_of_a_failed_dump_names_the_unix_socket_with_an_outside_peer(crckpt: Crckpt) -> None:
    """CRIU reports only the inode of the outside socket. crckpt also names the descriptor connected to it."""
    path = crckpt.store.parent / "peer.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with waiting(CONNECTING_PROGRAM, str(path)) as (pid, (fd,)), listening.accept()[0]:
            error = crckpt.run("dump", str(pid), "job", "--no-preflight", status=21).err
    assert re.search(rf"\(process {pid} \(\S+\), fd {fd} \(unix stream #\d+ -> unix stream {path}\)\)", error), error


def test_error_of_a_failed_restore_names_the_socket_that_cannot_be_created(crckpt: Crckpt) -> None:
    """The images tell which socket the descriptor was. The directory of its name does not exist any more."""
    path = crckpt.store.parent / "gone/peer.sock"
    path.parent.mkdir()
    with waiting(LISTENING_PROGRAM, str(path)) as (pid, (fd,)):
        crckpt.run("dump", str(pid), "job", "--stop")
    shutil.rmtree(path.parent)
    error = crckpt.run("restore", "job", "--detach", "--no-preflight", status=23).err
    assert re.search(rf"\(process {pid} \(\S+\), fd {fd} \(unix stream {path} \(listen\)\)\)", error), error
