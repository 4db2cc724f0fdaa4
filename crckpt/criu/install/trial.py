"""Test whether a CRIU works on this kernel: dump and restore a small process. Its version proves nothing."""

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
# Some builds dump a plain process but no TCP socket (4.1 on kernel 6.18): the process has one of each common kind.
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

# Seconds; the host may be busy.
_STARTED_WITHIN_S = 60
_ENDED_WITHIN_S = 10
_STEP_S = 60


def trial(criu: Path, python: str = sys.executable) -> str:
    """Dump and restore a small process with `criu`; return the version. Nothing is left behind.

    `python` runs the process. Raises RejectedError, which has the step that failed, if one did, and CRIU's own words.
    """
    rights = [] if os.geteuid() == 0 else ["--unprivileged"]
    found = re.search(r"Version: (\S+)", run(criu, "--version"))
    version = found[1] if found else "of unknown version"

    def step(name: str, *words: object) -> None:
        run(criu, name, *words, *rights, "--no-default-config", called=f"CRIU {version}: {name}", timeout=_STEP_S)

    # Not `criu check`: it also complains about what CRIU does not need here (/proc/sys is read-only in containers).
    with tempfile.TemporaryDirectory(prefix="crckpt-trial-") as images, _small_process(images, python) as process:
        common = ["--images-dir", images, "--manage-cgroups=ignore", "--log-file"]
        step("dump", "--tree", process.pid, *common, "dump.log")
        # Until it is reaped its PID is taken.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_ENDED_WITHIN_S)
        if process.returncode is None:
            raise RejectedError(f"CRIU {version}: dump: the process did not end")
        # Restore it as our child, so that we can end and reap it.
        step("restore", "--restore-detached", "--restore-sibling", *common, "restore.log")
        if not _answers(images):
            raise RejectedError(f"CRIU {version}: restore: the restored process does not answer")
    return version


@contextlib.contextmanager
def _small_process(directory: str, python: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with a thread, a pipe, a socket pair and two listening sockets; end it after the block.

    It answers at a socket in the directory, where it works.
    """
    said = Path(directory, "program.out")
    with socket.socket(socket.AF_UNIX) as server, said.open("wb") as output:
        server.bind(f"{directory}/{_SOCKET}")
        server.listen()
        process = subprocess.Popen(
            [python, "-I", "-S", "-c", _PROGRAM, str(server.fileno())],
            pass_fds=[server.fileno()],
            start_new_session=True,
            cwd=directory,
            env={"LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        if not _answers(directory):
            raise RejectedError(f"the trial's program does not start: {said.read_text(errors='replace').strip()}")
        yield process
    finally:
        _end(process.pid, directory)
        process.wait()


def _answers(directory: str) -> bool:
    """Return whether the process answers, through its thread, pipe and socket pair."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_STARTED_WITHIN_S)
            connection.connect(f"{directory}/{_SOCKET}")
            # The second read waits until the process has closed its end: CRIU refuses open connections.
            return connection.recv(1) == b"+" and connection.recv(1) == b""
    except OSError:
        return False


def _end(pid: int, directory: str) -> None:
    """Kill and reap the child, or the process that CRIU restored under the same PID."""
    # The restored one is not our child where a script started CRIU.
    with contextlib.suppress(OSError), contextlib.ExitStack() as undo:
        pidfd = os.pidfd_open(pid)
        undo.callback(os.close, pidfd)
        if Path(f"/proc/{pid}/cwd").readlink() == Path(directory).resolve():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
