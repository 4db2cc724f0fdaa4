"""CRIU and its code in a process get a socket pair (parasite.c): there is no name by which others reach them."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from typing import Final

import pytest

from crckpt.tracking.preload.library import LIBRARY

pytestmark = [
    pytest.mark.skipif(not LIBRARY.exists(), reason="there was no C compiler"),
    pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="the library does not do it here"),
]

CONNECTING_PROGRAM: Final = """
import contextlib, ctypes, errno, json, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
SEIZE, CONT, INTERRUPT = 0x4206, 7, 0x4207
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
name = "\\0/crtools-pr-1-%d" % os.getpid()

def code():
    descriptors = len(os.listdir("/proc/self/fd"))
    if sys.argv[1] == "full":
        resource.setrlimit(resource.RLIMIT_NOFILE, (go + 1, go + 1))
    os.read(go, 1)
    try:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(name)
        client.send(b"%d more" % (len(os.listdir("/proc/self/fd")) - descriptors))
        client.recv(10)
    except OSError as error:
        os.write(2, errno.errorcode[error.errno].encode())
    os._exit(0)

def stopped():
    if not (pid := os.fork()):
        code()
    assert libc.ptrace(SEIZE, pid, None, 1) == 0  # PTRACE_O_TRACESYSGOOD, as CRIU
    libc.ptrace(INTERRUPT, pid, None, None)
    os.waitpid(pid, 0)
    return pid

def find_ended(*_):
    # A second signal for the same stop or end may follow.
    with contextlib.suppress(ChildProcessError):
        told.append(os.waitpid(-1, os.WNOHANG)[0])

told, results = [], []
# CRIU has one such socket, for one process after another.
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
for _ in range(2):
    # What is in the pipe may be left there by a process that is killed.
    go, goes = os.pipe()
    pid = stopped()
    os.write(goes, b"x")
    signal.signal(signal.SIGCHLD, find_ended)
    server.bind(name)
    server.listen(1)
    if sys.argv[1] == "ends":
        os.kill(pid, signal.SIGKILL)
    libc.ptrace(CONT, pid, None, None)
    connection = libc.accept(server.fileno(), None, None)
    if connection < 0:
        results.append(errno.errorcode[ctypes.get_errno()])
        while sys.argv[1] == "ends" and not any(told):
            pass
    else:
        with socket.socket(fileno=connection) as found:
            results.append(found.recv(10).decode())
            results += ["crtools" in open("/proc/net/unix").read(), any(told)]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not any(told):
        os.waitpid(pid, 0)
    del told[:]
    os.close(go)
    os.close(goes)
print(json.dumps(results))
"""


def run(how: str) -> tuple[object, str]:
    """Return what a program prints that does as CRIU does, and what the process in which its code is prints."""
    command = ["env", f"LD_PRELOAD={LIBRARY}", sys.executable, "-c", CONNECTING_PROGRAM, how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended.stderr


def test_code_of_criu_in_a_process_is_connected_by_a_socket_pair() -> None:
    """The process gets one descriptor, and CRIU learns of no stop. The next process is connected in the same way."""
    assert run("runs") == (["1 more", False, False] * 2, "")


def test_process_without_free_descriptors_is_not_connected_to_criu() -> None:
    results, text = run("full")
    assert results == ["ECONNABORTED"] * 2
    assert text == "EMFILE" * 2


def test_criu_itself_finds_the_end_of_the_process() -> None:
    """CRIU's handler of SIGCHLD finds the ended process."""
    assert run("ends") == (["ECONNABORTED"] * 2, "")
