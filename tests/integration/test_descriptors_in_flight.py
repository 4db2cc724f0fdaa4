"""A restore gives a user's program no file that waits in a unix socket and that no process has open."""

from __future__ import annotations

from typing import Final

import pytest
from command import Crckpt
from stopped_trees import JOB, stopped
from trees import NOBODY, PYTHON, Case, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED: Final = 23
REFUSED: Final = 24
REHEARSAL_FAILED: Final = 25
WITHIN_S: Final = 60
AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
SENDING_PROGRAM: Final = """
import os, socket, sys
from pathlib import Path
from selfcheck import Program

workdir, kind, keeps = Path(sys.argv[1]), *sys.argv[2:]
(workdir / "file").write_text("content")
ours, theirs = socket.socketpair()
if kind == "pipe":
    waiting, writer = os.pipe()
    os.write(writer, b"content")
elif kind == "memory":
    waiting = os.memfd_create("waiting")
    os.pwrite(waiting, b"content", 0)
elif kind == "listener":
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{workdir}/socket")
    listener.listen(1)
    waiting = listener.detach()
else:
    waiting = os.open(workdir / kind, os.O_RDWR)
socket.send_fds(ours, [b"x"], [waiting])
if keeps == "no":
    os.close(waiting)
program = Program(workdir)

def step():
    if (workdir / "receive").exists() and not (workdir / "received").exists():
        _, (received,), *_ = socket.recv_fds(theirs, 1, 1)
        (workdir / "received").write_bytes(b"" if kind == "listener" else os.read(received, 7))

program.run(step)
"""


def sender(kind: str, user: int = NOBODY, *, keeps: bool = False) -> Case:
    """A program of this user that has sent itself a descriptor and not yet received it.

    It may also keep the file open.
    """
    place = "{workdir}/programs" if user else "{programs}"
    program = ("env", f"PYTHONPATH={place}", PYTHON, "-c", SENDING_PROGRAM, "{workdir}", kind, "yes" if keeps else "no")
    return Case("in-flight", (*(AS_NOBODY if user else ()), *program), user=user)


@pytest.mark.parametrize(
    ("kind", "name"), [("file", "/file"), ("/proc/self/mem", "/mem"), ("listener", "/socket (listen)")]
)
def test_restore_does_not_pass_a_file_opened_by_root_through_a_socket_to_another_user(
    crckpt: Crckpt, kind: str, name: str
) -> None:
    """CRIU opens the file as root, and crckpt cannot examine it.

    Clients of a waiting listener would take it for root's.
    """
    with stopped(crckpt, sender(kind), "--force") as tree:
        error = crckpt.run("restore", JOB, "--detach", status=FAILED).err
        assert f"process {tree.pid} (python3) could receive " in error
        assert f"{name} as if root had opened it: it waits in a unix socket" in error
        assert "waits in a unix socket" in crckpt.run("rehearse", JOB, status=REHEARSAL_FAILED).err
        before = tree.counters()
        assert "waits in a unix socket" in crckpt.run("restore", JOB, "--detach", "--allow-weaker").out
        tree.wait_growth(before)


@pytest.mark.parametrize("kind", ["pipe", "memory"])
def test_pipe_or_memory_that_waits_in_a_socket_is_restored(crckpt: Crckpt, kind: str) -> None:
    """Pipes and memory come from the images alone."""
    _receives(crckpt, sender(kind))


def test_file_that_waits_in_a_socket_is_restored_if_the_program_also_has_it_open(crckpt: Crckpt) -> None:
    """crckpt can examine a file that the program also has open."""
    _receives(crckpt, sender("file", keeps=True))


def test_file_that_waits_in_a_socket_is_restored_for_a_program_of_root(crckpt: Crckpt) -> None:
    """A program of root may open any file."""
    _receives(crckpt, sender("file", user=0))


def test_dump_that_ends_the_tree_is_refused_while_descriptors_wait(crckpt: Crckpt) -> None:
    """The program might not be restorable. A dump that leaves the program running only warns."""
    with started(sender("file")) as tree:
        warning = f"process {tree.pid} (python3) has not yet received descriptors that wait in its unix socket at fd "
        assert warning in crckpt.run("dump", str(tree.pid), JOB, "--stop", status=REFUSED).err
        assert warning in crckpt.run("doctor", str(tree.pid)).out
        assert warning in crckpt.run("dump", str(tree.pid), JOB).out
        tree.wait_growth(tree.counters())
        (tree.workdir / "receive").touch()
        wait_for((tree.workdir / "received").exists, WITHIN_S, "the program to receive it")
        crckpt.run("dump", str(tree.pid), JOB, "--stop")


def _receives(crckpt: Crckpt, case: Case) -> None:
    """Check that a restored program receives what it had sent itself."""
    with stopped(crckpt, case, "--force") as tree:
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        (tree.workdir / "receive").touch()
        received = tree.workdir / "received"
        wait_for(lambda: received.exists() and received.read_bytes() == b"content", WITHIN_S, "the program to read it")
