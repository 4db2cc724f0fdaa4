"""Peers that CRIU's sockets with abstract names accept (peers.c): any user of the host can reach them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

import pytest

from crckpt.tracking.preload.library import LIBRARY, RESTORE_LIBRARY

pytestmark = [
    pytest.mark.skipif(not RESTORE_LIBRARY.exists(), reason="there was no C compiler"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user"),
]

NOBODY: Final = 65534
CONNECTS: Final = """
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
name = "\\0/crtools-pr-1-%d" % os.getpid()
connected, connects_now = os.pipe()

def connects(user, double=False):
    # A grandchild is neither our child nor traced by us.
    pid = os.fork()
    if pid and not double:
        return pid
    if pid:
        os.waitpid(pid, 0)
        return pid
    if double and os.fork():
        os._exit(0)
    server.close()  # or it stays open for as long as this process waits for an answer
    os.setuid(user)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(name)
            os.write(connects_now, b"c")
            client.send(b"%d" % user)
            client.recv(1)
    except ConnectionError:
        pass  # the server is gone
    os._exit(0)

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.bind(name)
    libc.listen(server.fileno(), 1)
    for _ in range(5):
        connects(65534, double=True)
    for _ in range(2):
        os.read(connected, 1)  # the queue is full
    child = connects(0)
    messages = []
    with socket.socket(fileno=libc.accept(server.fileno(), None, None)) as found:
        messages.append(found.recv(10).decode())
    os.waitpid(child, 0)
    print(json.dumps(messages))
"""
SENDS: Final = """
import json, os, socket
name = "\\0/crtools-fd-1-%d" % os.getpid()

def sends(user, text):
    if not (pid := os.fork()):
        os.setuid(user)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect(name)
            socket.send_fds(client, [text], [2, 2])
        os._exit(0)
    os.waitpid(pid, 0)

with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
    server.bind(name)
    before = len(os.listdir("/proc/self/fd"))
    messages = []
    for user, text in ((65534, b"theirs"), (0, b"ours"), (65534, b"theirs again"), (65534, b"and again"), (0, b"more")):
        sends(user, text)
    for _ in range(2):
        text, descriptors, flags, _ = socket.recv_fds(server, 100, 2)
        messages.append([text.decode(), len(descriptors), flags])
    sends(65534, b"last")
    server.setblocking(False)
    try:
        socket.recv_fds(server, 100, 4)
    except BlockingIOError:
        messages.append("nothing more")
    messages.append(len(os.listdir("/proc/self/fd")) - before)
    print(json.dumps(messages))
"""


def run(library: str, code: str) -> object:
    """Return what a program prints that was started with this library."""
    words = ["env", f"LD_PRELOAD={library}", sys.executable, "-c", code]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_other_users_are_not_accepted_as_criu_code() -> None:
    """Other users connect first and fill the queue."""
    assert run(str(LIBRARY), CONNECTS) == ["0"]


def test_message_of_another_user_is_dropped_with_its_descriptors() -> None:
    assert run(str(RESTORE_LIBRARY), SENDS) == [["ours", 2, 0], ["more", 2, 0], "nothing more", 4]
