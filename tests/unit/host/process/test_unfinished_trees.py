"""Processes that a CRIU has left, which was killed before they ran: known by its log, which they have open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.proc import LiveRoot, identify_live_root
from crckpt.host.proc.live_root import CriuLog, identify_log
from crckpt.host.process import orphans
from crckpt.host.process.orphans import end_unfinished_trees

PROGRAM_WITH_AN_OPEN_FILE = (
    "import sys, time\nfile = open(sys.argv[1], sys.argv[2])\nprint(flush=True)\ntime.sleep(1000)"
)


@contextmanager
def program(log: Path, mode: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the directory of the log that has the log open."""
    words = (sys.executable, "-c", PROGRAM_WITH_AN_OPEN_FILE, log, mode)
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


def identified(path: Path) -> CriuLog:
    log = identify_log(str(path), 0)
    assert log is not None
    return log


def test_tree_counts_as_unfinished_once_its_criu_is_dead(tmp_path: Path) -> None:
    log = tmp_path / "restore.log"
    with program(log, "w") as builder, program(log, "a") as root:
        live = identify(root, builder)
        assert live.log is not None
        assert live.log.path == str(log)
        assert live.is_held()
        assert not live.is_unfinished()
        builder.kill()
        builder.wait()
        assert not live.is_held()
        assert live.is_unfinished()
        log.unlink()
        assert live.is_unfinished()
        end_unfinished_trees([live.log])
        assert root.wait() == -9
        assert not live.is_unfinished()


def test_tree_that_runs_never_counts_as_unfinished(tmp_path: Path) -> None:
    """The process has closed the log, has opened another file with that name, or its log is unknown."""
    log, other = tmp_path / "restore.log", tmp_path / "other.log"
    log.touch()
    with program(other, "w") as builder, program(log, "r") as root:
        live = identify(root, builder)
        assert live.log is None
        builder.kill()
        builder.wait()
        assert not live.is_unfinished()
        end_unfinished_trees([identified(log), identified(other)])
        assert root.poll() is None


def test_process_with_another_file_at_the_path_of_the_log_does_not_count_as_unfinished(tmp_path: Path) -> None:
    """Any user can create such a file in mounts of their own, and pass it to any process."""
    log = tmp_path / "restore.log"
    log.touch()
    genuine = identified(log)
    log.rename(tmp_path / "moved")
    with program(log, "w") as other:
        end_unfinished_trees([genuine])
        assert other.poll() is None


def test_process_older_than_criu_does_not_count_as_unfinished(tmp_path: Path) -> None:
    """The program of a user may pass the log to a daemon: no process of the tree is so old."""
    log = tmp_path / "restore.log"
    with program(log, "w") as daemon:
        found = proc.read_process(daemon.pid)
        assert found is not None
        end_unfinished_trees([replace(identified(log), began=found.start + 1)])
        assert daemon.poll() is None
        end_unfinished_trees([replace(identified(log), began=found.start)])
        assert daemon.wait() == -9


def test_ending_processes_that_fork_endlessly_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "_WITHIN_S", 0.0)
    log = tmp_path / "restore.log"
    with program(log, "w") as writer:
        # As if there were always another one.
        monkeypatch.setattr(orphans, "_is_writer", lambda pid, _logs: pid == writer.pid)
        with pytest.raises(HostCannot, match=f"PID {writer.pid}, .* does not end"):
            end_unfinished_trees([identified(log)])
