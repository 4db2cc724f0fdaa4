"""The holder of a terminal, which a program of the tree can neither fill nor keep alive."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from target_processes import wait_for

from crckpt.helper.kinds import TERMINAL
from crckpt.helper.pid_namespace.client import end_namespace, start_as_init
from crckpt.helper.start import StartedHelper, start_helper
from crckpt.helper.terminal.protocol import HeldTree, HolderAnswer, HolderRequest
from crckpt.host import proc

WITHIN_S: Final = 60
TRACER: Final = Path(__file__).parents[3] / "programs/tracer.py"


@pytest.fixture(params=["here", "as-init"])
def holder(request: pytest.FixtureRequest) -> Iterator[StartedHelper]:
    """A holder that alone has its terminal open; it is ended afterwards."""
    master, slave = os.openpty()
    words = (str(master), str(slave), "1", f"held-{secrets.token_hex(4)}")
    start = start_helper if request.param == "here" else start_as_init
    helper = start(TERMINAL, *words, keep=(master, slave))
    os.close(master)
    os.close(slave)
    log = Path(helper.receive_descriptors(HolderAnswer, WITHIN_S)[0].log)
    try:
        yield helper
    finally:
        end_namespace(helper)
        log.unlink()


def test_holder_ends_if_its_program_ended_just_before_the_commit(holder: StartedHelper) -> None:
    """Otherwise the holder would wait forever for output, because it has the terminal open itself."""
    pid, _ = _start(holder, "echo last words >&0")
    assert _read_ends(holder, pid) == [pid]
    _commit(holder, pid)
    wait_for(holder.has_ended, "the holder to end")


def test_exit_status_of_an_orphan_is_not_kept(holder: StartedHelper, tmp_path: Path) -> None:
    """A program that makes orphans would fill the memory of the holder, and of a crckpt in the foreground."""
    orphans = "for i in 1 2 3 4 5; do (sleep 0.1 &); done; sleep 1; exit 7"
    pid, _ = _start(holder, f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; {orphans}")
    _commit(holder, pid)
    (tmp_path / "go").touch()
    assert _read_ends(holder, pid) == [pid]
    wait_for(holder.has_ended, "the holder to end")


def test_aborted_holder_does_not_wait_for_a_child_that_it_cannot_reap(holder: StartedHelper) -> None:
    """A traced process cannot be reaped until its tracer allows it."""
    _, pidfd = _start(holder, "exec sleep 300")
    words = (sys.executable, str(TRACER), str(proc.read_pidfd(pidfd)))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tracer:
        try:
            assert tracer.stdout is not None
            assert tracer.stdout.readline() == "traced\n"
            holder.send(HolderRequest("abort"))
            assert holder.receive_descriptors(HolderAnswer, WITHIN_S)[0] == HolderAnswer()
        finally:
            tracer.kill()


def _start(holder: StartedHelper, script: str) -> tuple[int, int]:
    """Start a shell script at the terminal; return its PID, as the holder sees it, and its pidfd."""
    with Path(os.devnull).open("w") as nowhere:
        request = HolderRequest("start", ("/bin/sh", "-c", script), {"PATH": os.environ["PATH"]})
        holder.send(request, (nowhere.fileno(),))
    answer, (pidfd,) = holder.receive_descriptors(HolderAnswer, WITHIN_S)
    return answer.started, pidfd


def _commit(holder: StartedHelper, pid: int) -> None:
    holder.send(HolderRequest("commit", tree=HeldTree(os.getpid(), 1, pid, "sh", "job", "ab" * 32, "log")))
    assert holder.receive_descriptors(HolderAnswer, WITHIN_S)[0] == HolderAnswer()


def _read_ends(holder: StartedHelper, last: int) -> list[int]:
    """Read which children have ended, up to the `last`."""
    found: list[int] = []
    while last not in found:
        answer, _ = holder.receive_descriptors(HolderAnswer, WITHIN_S)
        assert answer.ended is not None
        found.append(answer.ended[0])
    return found
