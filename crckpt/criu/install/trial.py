"""Dump and restore a small process with a CRIU."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from crckpt.criu.install.machine import RejectedError, run

_SOCKET = "answers"
# Nobody else can connect to it, because CRIU would refuse the dump then: its TCP socket drops all packets, by a filter
# (BPF_RET, struct sock_fprog), and the other one is in a private directory.
_PROGRAM = """
import array, os, signal, socket, struct, sys, threading
signal.alarm(300)  # end even if the parent was killed
server = socket.socket(fileno=int(sys.argv[1]))
filter = array.array("B", struct.pack("=HBBI", 6, 0, 0, 0))
tcp = socket.socket()
tcp.setsockopt(socket.SOL_SOCKET, 26, struct.pack("@HP", 1, filter.buffer_info()[0]))  # SO_ATTACH_FILTER
tcp.bind(("127.0.0.1", 0))
tcp.listen()
out, into = os.pipe()
near, far = socket.socketpair()
def relay():
    while True:
        far.send(os.read(out, 1))
threading.Thread(target=relay, daemon=True).start()
while True:
    with server.accept()[0] as peer:
        os.write(into, b"+")
        peer.send(near.recv(1))
"""


def trial(criu: Path) -> str:
    """Dump and restore a small process with `criu`; return the version. Raise RejectedError with CRIU's own message."""
    rights = [] if os.geteuid() == 0 else ["--unprivileged"]
    found = re.search(r"Version: (\S+)", run(criu, "--version"))
    version = found[1] if found else "of unknown version"
    run(criu, "check", *rights, "--no-default-config", called=f"CRIU {version}: check", timeout=30)
    with tempfile.TemporaryDirectory(prefix="install-criu-") as images, _small_process(images) as process:
        common = [*rights, "--no-default-config", "--images-dir", images, "--manage-cgroups=ignore", "--log-file"]
        run(criu, "dump", "--tree", process.pid, *common, "dump.log", called=f"CRIU {version}: dump", timeout=30)
        if not _ends_soon(process):
            raise RejectedError(f"CRIU {version}: dump: the process did not end")
        # Restore it as our child, so that we can end and reap it.
        sibling = ["--restore-detached", "--restore-sibling"]
        run(criu, "restore", *sibling, *common, "restore.log", called=f"CRIU {version}: restore", timeout=30)
        if not _answers(images):
            raise RejectedError(f"CRIU {version}: the restored process does not answer")
    return version


@contextlib.contextmanager
def _small_process(directory: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with a thread, a pipe, a socket pair and two listening sockets; end it after the block.

    It answers at a socket in the directory.
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{directory}/{_SOCKET}")
        server.listen()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(server.fileno())],
            pass_fds=[server.fileno()],
            start_new_session=True,
            cwd="/",
            env={"LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        if not _answers(directory):
            raise RejectedError("the trial's process did not start")
        yield process
    finally:
        _end_child(process.pid)
        process.wait()


def _answers(directory: str) -> bool:
    """Return whether the process answers, through its thread, pipe and socket pair."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(f"{directory}/{_SOCKET}")
            # The second read waits until the process has closed its end: CRIU refuses open connections.
            return connection.recv(1) == b"+" and connection.recv(1) == b""
    except OSError:
        return False


def _ends_soon(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process ends and is reaped within 5 s: until then its PID is taken."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    return process.returncode is not None


def _end_child(pid: int) -> None:
    """Kill and reap `pid` if it is our child."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
