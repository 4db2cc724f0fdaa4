"""A tree that runs before its memory is filled: every page is as it was, whatever the program does meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import Crckpt
from places import SUPPORT
from stopped import JOB
from trees import PROGRAMS, PYTHON, wait_for

from crckpt.host import proc
from crckpt.ops.lazy.marks import is_incomplete

MEGABYTES = 40


@dataclass
class LazyTree:
    """A tree that was restored lazily: its background fills once `go_on` was called."""

    directory: Path
    pid: int
    helper: int
    guard: int

    def go_on(self) -> None:
        """Let the background fill."""
        (self.directory / "gate").touch()

    def check(self) -> str:
        """Let the program check its memory; return what it says."""
        said = self.directory / "said"
        said.unlink()
        (self.directory / "go").touch()
        wait_for(lambda: (said.exists() and said.read_text() != "") or not runs(self.pid), 60, "the program to check")
        return said.read_text() if said.exists() else "it has ended"


def runs(pid: int) -> bool:
    """Whether a process lives."""
    process = proc.read_process(pid)
    return process is not None and process.state not in ("zombie", "dead")


@contextmanager
def restored_lazily(crckpt: Crckpt, directory: Path, *options: str) -> Iterator[LazyTree]:
    """changing_memory.py, dumped and restored with `options` of lazy_restore.py."""
    said = directory / "said"
    words = (PYTHON, str(PROGRAMS / "changing_memory.py"), str(directory), str(MEGABYTES))
    null = subprocess.DEVNULL
    program = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True, close_fds=True)
    try:
        wait_for(lambda: said.exists() and said.read_text() == "ready", 60, "the program")
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait()
        script = [sys.executable, str(SUPPORT / "lazy_restore.py")]
        restoring = (*script, str(crckpt.store), JOB, str(directory / "gate"), *options)
        done = subprocess.run(restoring, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        # Others are threads.
        processes = [process for tid in found["helper"] if (process := proc.read_process(tid)) is not None]
        # There is none if nothing was left to it.
        pids = [(process.pid, process.ppid) for process in processes if process.ppid in found["helper"]]
        yield LazyTree(directory, found["root"], *(pids or [(0, 0)])[0])
    finally:
        (directory / "gate").touch()
        with suppress(ProcessLookupError):
            os.kill(program.pid, signal.SIGKILL)


@pytest.mark.usefixtures("adopted")
def test_a_program_may_change_all_its_mappings(crckpt: Crckpt, tmp_path: Path) -> None:
    """It gives memory back, moves it, protects it and forks, while only what it touches is filled."""
    with restored_lazily(crckpt, tmp_path) as tree:
        assert is_incomplete(tree.pid)
        assert tree.check() == "intact"
        tree.go_on()
        wait_for(lambda: not runs(tree.guard), 60, "all memory")
        assert not is_incomplete(tree.pid)
        assert tree.check() == "intact"


@pytest.mark.usefixtures("adopted")
def test_what_was_written_last_is_there_at_once(crckpt: Crckpt, tmp_path: Path) -> None:
    """All of it, here: nothing is left to the helper, which ends."""
    with restored_lazily(crckpt, tmp_path, "hot") as tree:
        wait_for(lambda: not is_incomplete(tree.pid), 60, "the end of the helper")
        assert tree.check() == "intact"


@pytest.mark.usefixtures("adopted")
def test_a_tree_without_its_helper_ends(crckpt: Crckpt, tmp_path: Path) -> None:
    """It would get zeros for pages that are not there yet."""
    with restored_lazily(crckpt, tmp_path) as tree:
        os.kill(tree.helper, signal.SIGKILL)
        wait_for(lambda: not runs(tree.guard), 60, "the guard")
        # The tree is adopted: it can be waited for.
        assert os.waitpid(tree.pid, 0)[1] == signal.SIGKILL
        # Its checkpoint is still there.
        crckpt.run("restore", JOB, "--detach")
        assert tree.check() == "intact"


@pytest.mark.usefixtures("adopted")
def test_a_helper_without_its_guard_goes_on(crckpt: Crckpt, tmp_path: Path) -> None:
    with restored_lazily(crckpt, tmp_path) as tree:
        os.kill(tree.guard, signal.SIGKILL)
        tree.go_on()
        wait_for(lambda: not runs(tree.helper), 60, "all memory")
        assert tree.check() == "intact"


@pytest.mark.usefixtures("adopted")
def test_a_tree_that_has_lost_memory_is_not_dumped(crckpt: Crckpt, tmp_path: Path) -> None:
    """Helper and guard were killed at once: it has zeros where pages were missing."""
    with restored_lazily(crckpt, tmp_path) as tree:
        # The guard must not see the end of the helper.
        os.kill(tree.guard, signal.SIGSTOP)
        os.kill(tree.helper, signal.SIGKILL)
        os.kill(tree.guard, signal.SIGKILL)
        wait_for(lambda: not runs(tree.guard) and not runs(tree.helper), 60, "their end")
        refused = crckpt.run("dump", str(tree.pid), JOB, "--stop", status=20)
        assert f"memory of PID {tree.pid} was lost" in refused.err
        os.kill(tree.pid, signal.SIGKILL)
        os.waitpid(tree.pid, 0)
        crckpt.run("restore", JOB, "--detach")
        assert tree.check() == "intact"


@pytest.mark.usefixtures("adopted")
def test_a_tree_that_ends_ends_its_helper(crckpt: Crckpt, tmp_path: Path) -> None:
    with restored_lazily(crckpt, tmp_path) as tree:
        os.kill(tree.pid, signal.SIGKILL)
        tree.go_on()
        wait_for(lambda: not runs(tree.guard), 60, "the helper")
        assert not list(Path("/run/crckpt/filling").glob(f"{tree.pid}-*"))


@pytest.mark.usefixtures("adopted")
def test_a_dump_waits_for_the_memory(crckpt: Crckpt, tmp_path: Path) -> None:
    """It would miss what is not there yet."""
    with restored_lazily(crckpt, tmp_path) as tree:
        assert tree.check() == "intact"
        with crckpt.start("dump", str(tree.pid), JOB, "--stop") as dump:
            wait_for(lambda: waits_for_mark(dump.pid), 60, "the dump to wait")
            tree.go_on()
            out, err = dump.communicate()
            assert dump.returncode == 0, (out, err)
            assert err.count(f"waiting until all memory of PID {tree.pid} is there") == 1
        os.waitpid(tree.pid, 0)
        crckpt.run("restore", JOB, "--detach")
        assert tree.check() == "intact"


def waits_for_mark(pid: int) -> bool:
    """Whether a process, or one that it has started, waits for a lock on the mark of a tree."""
    waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return any(int(words[5]) == pid for words in waiting)
