"""Another user of the host reaches CRIU's sockets, but can neither keep a tree frozen nor end a restore."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import pytest
from command import Crckpt
from stopped_trees import BY_NAME, JOB
from trees import NOBODY, PYTHON, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

LINGERS_S: Final = 25
STRANGER_PROGRAM: Final = r"""
import array, os, re, socket, struct, sys

def lingering():
    # Who closes it last waits for 30 s, because its text is never read.
    sender = socket.create_connection(listener.getsockname())
    kept.append(listener.accept()[0])
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(1 << 16))
    except BlockingIOError:
        return sender

def send(name, kind):
    with socket.socket(socket.AF_UNIX, kind) as sender:
        sender.setblocking(False)
        sender.connect("\0" + name)
        rights = array.array("i", [ready[-1].fileno()])
        sender.sendmsg([b"x" * 64], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    print(kind.name, flush=True)
    # Whoever has the message has the last one now. If nobody has taken it, that is this program.
    ready.pop().close()

def squat(name):
    for pid in sys.argv[2:]:
        other = re.sub(r"fd-\d+", f"fd-{pid}", name)
        try:
            kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            kept[-1].bind("\0" + other)
        except OSError:
            pass

os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
reached, kept, listener = set(), [], socket.create_server(("127.0.0.1", 0))
ready = [lingering() for _ in range(40)]
print("ready", flush=True)
while ready:
    for name, kind in re.findall(r"@(/crtools-(pr|fd)-\S+)", open("/proc/net/unix").read()):
        if name in reached:
            continue
        reached.add(name)
        try:
            if kind == "fd":
                squat(name)
            send(name, socket.SOCK_SEQPACKET if kind == "pr" else socket.SOCK_DGRAM)
        except OSError:
            reached.remove(name)
"""


@contextmanager
def stranger(report: Path, *pids: int) -> Iterator[None]:
    """A program of nobody's that sends to each socket of CRIU's that it sees, and binds the names for these PIDs.

    It writes which sockets it has reached.
    """
    with report.open("w") as file:
        words = (PYTHON, "-c", STRANGER_PROGRAM, f"{NOBODY}", *map(str, pids))
        program = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, start_new_session=True)
        try:
            wait_for(lambda: "ready" in report.read_text(), 30, "the stranger to start")
            yield
        finally:
            # The messages that CRIU did not read are discarded with the program.
            program.kill()
            program.wait()


def test_no_other_user_finds_the_socket_of_a_dump(crckpt: Crckpt, tmp_path: Path) -> None:
    """Another user cannot connect, fill the queue, or send a descriptor whose close takes 30 s."""
    report = tmp_path / "report"
    with started(BY_NAME["unix-sockets"]) as tree, stranger(report):
        began = time.monotonic()
        for _ in range(5):
            crckpt.run("dump", str(tree.pid), JOB)
        assert report.read_text() == "ready\n"
        assert time.monotonic() - began < LINGERS_S


def test_restores_ignore_messages_and_names_of_other_users(crckpt: Crckpt, tmp_path: Path) -> None:
    report = tmp_path / "report"
    with started(BY_NAME["unix-sockets"]) as tree:
        pids = (tree.pid, *(child.pid for child in psutil.Process(tree.pid).children(recursive=True)))
        with stranger(report, *pids):
            for _ in range(10):
                before = tree.counters()
                crckpt.run("dump", str(tree.pid), JOB, "--stop")
                tree.wait_gone()
                began = time.monotonic()
                crckpt.run("restore", JOB, "--detach")
                assert time.monotonic() - began < LINGERS_S
                tree.wait_growth(before)
                if "SOCK_DGRAM" in report.read_text().split():
                    break
            else:
                pytest.fail(f"it has reached nothing: {report.read_text()!r}")
