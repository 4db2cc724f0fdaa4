"""Processes that a CRIU has left, which was killed before they ran: known by its log, which they have open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crckpt.host import proc
from crckpt.host.proc import LiveRoot, identify_live_root
from crckpt.host.process.unfinished_trees import end_unfinished_trees

OPENS = "import sys, time\nfile = open(sys.argv[1], sys.argv[2])\nprint(flush=True)\ntime.sleep(1000)"


@contextmanager
def program(log: Path, mode: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the directory of the log that has it open."""
    words = (sys.executable, "-c", OPENS, log, mode)
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=log.parent) as found:
        try:
            assert found.stdout is not None
            assert found.stdout.readline() == b"\n"
            yield found
        finally:
            found.kill()


def identify(root: subprocess.Popen[bytes], builder: subprocess.Popen[bytes]) -> LiveRoot:
    process = proc.read_process(root.pid)
    assert process is not None
    return identify_live_root(process, builder.pid)


def test_a_tree_is_unfinished_once_its_builder_is_dead(tmp_path: Path) -> None:
    log = tmp_path / "restore.log"
    with program(log, "w") as builder, program(log, "a") as root:
        live = identify(root, builder)
        assert live.log == str(log)
        assert live.is_held()
        assert not live.is_unfinished()
        builder.kill()
        builder.wait()
        assert not live.is_held()
        assert live.is_unfinished()
        log.unlink()
        assert live.is_unfinished()
        end_unfinished_trees({live.log})
        assert root.wait() == -9
        assert not live.is_unfinished()


def test_a_tree_that_runs_is_never_taken_for_one(tmp_path: Path) -> None:
    """It has closed the log; or it reads a file of that name; or its log is not known."""
    log, other = tmp_path / "restore.log", tmp_path / "other.log"
    log.touch()
    with program(other, "w") as builder, program(log, "r") as root:
        live = identify(root, builder)
        assert live.log == ""
        builder.kill()
        builder.wait()
        assert not live.is_unfinished()
        end_unfinished_trees({str(log), str(other)})
        assert root.poll() is None
