"""A tree that runs before its memory is filled has every page as it was, whatever the program does meanwhile."""

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
from checkout import SUPPORT
from command import Crckpt
from stopped_trees import JOB
from trees import PROGRAMS, PYTHON, wait_for

from crckpt.host import proc
from crckpt.ops.lazy.family import is_incomplete

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
        """Let the program check its memory; return its report."""
        report = self.directory / "report"
        report.unlink(missing_ok=True)
        (self.directory / "go").touch()
        wait_for(
            lambda: (report.exists() and report.read_text() != "") or not runs(self.pid), 60, "the program to check"
        )
        return report.read_text() if report.exists() else "it has ended"


def runs(pid: int) -> bool:
    """Whether a process lives."""
    process = proc.read_process(pid)
    return process is not None and process.state not in ("zombie", "dead")


def reap(group: int) -> None:
    """Wait for the end of a group of processes, all of which are adopted."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)


def waits_for_memory(pid: int) -> bool:
    """Whether a process waits for a page, or for the report that it returned memory."""
    return "userfault" in Path(f"/proc/{pid}/wchan").read_text()


@contextmanager
def restored_lazily(
    crckpt: Crckpt, directory: Path, *options: str, program: tuple[str, ...] = ("changing_memory.py",)
) -> Iterator[LazyTree]:
    """A program, dumped and restored with `options` of lazy_restore.py."""
    report = directory / "report"
    words = (PYTHON, str(PROGRAMS / program[0]), str(directory), str(MEGABYTES), *program[1:])
    null = subprocess.DEVNULL
    process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True, close_fds=True)
    try:
        wait_for(lambda: report.exists() and report.read_text() == "ready", 60, "the program")
        crckpt.run("dump", str(process.pid), JOB, "--stop")
        process.wait()
        script = [sys.executable, str(SUPPORT / "lazy_restore.py")]
        restoring = (*script, str(crckpt.store), JOB, str(directory / "gate"), *options)
        result = subprocess.run(restoring, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)
        # Other ids are those of threads.
        helpers = [each for tid in found["helper"] if (each := proc.read_process(tid)) is not None]
        # Without missing pages there is no helper.
        pids = [(each.pid, each.ppid) for each in helpers if each.ppid in found["helper"]]
        yield LazyTree(directory, found["root"], *(pids or [(0, 0)])[0])
    finally:
        (directory / "gate").touch()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.usefixtures("orphans_are_reaped")
def test_program_may_change_its_mappings_while_its_memory_is_filled(crckpt: Crckpt, tmp_path: Path) -> None:
    """The program discards, moves, protects, guards and forks, while only touched pages are filled."""
    with restored_lazily(crckpt, tmp_path) as tree:
        assert is_incomplete(tree.pid)
        assert tree.check() == "intact"
        tree.go_on()
        wait_for(lambda: not runs(tree.guard), 60, "all memory")
        assert not is_incomplete(tree.pid)
        # The aio ring that kept the userfaultfd open is gone.
        assert "[aio]" not in Path(f"/proc/{tree.pid}/maps").read_text()
        assert tree.check() == "intact"


@pytest.mark.usefixtures("orphans_are_reaped")
def test_memory_fill_releases_resources_of_ended_children(crckpt: Crckpt, tmp_path: Path) -> None:
    """The program may fork any number of children while its memory is filled."""
    with restored_lazily(crckpt, tmp_path, program=("forking.py",)) as tree:
        (tmp_path / "go").touch()
        wait_for(lambda: (tmp_path / "report").read_text() == "forked", 60, "all forks")
        wait_for(lambda: len(list(Path(f"/proc/{tree.helper}/fd").iterdir())) < 50, 60, "descriptors to be closed")
        assert is_incomplete(tree.pid)


@pytest.mark.usefixtures("orphans_are_reaped")
def test_tree_that_forks_more_children_than_can_be_filled_is_ended(crckpt: Crckpt, tmp_path: Path) -> None:
    with restored_lazily(crckpt, tmp_path, "descriptors=400", program=("forking.py", "live")) as tree:
        mark = next(Path("/run/crckpt/filling").glob(f"{tree.pid}-*"))
        (tmp_path / "go").touch()
        wait_for(lambda: not runs(tree.guard), 60, "the guard")
        reap(tree.pid)
        assert "processes that lack memory" in mark.read_text()


@pytest.mark.usefixtures("orphans_are_reaped")
def test_tree_that_forks_faster_than_its_children_can_be_filled_is_ended(crckpt: Crckpt, tmp_path: Path) -> None:
    """Otherwise a program that continues in ever new children would never have all its memory."""
    with restored_lazily(crckpt, tmp_path, "seconds=0.1", program=("forking.py", "live")) as tree:
        mark = next(Path("/run/crckpt/filling").glob(f"{tree.pid}-*"))
        (tmp_path / "go").touch()
        wait_for(lambda: (tmp_path / "report").read_text() == "forked", 60, "all forks")
        os.kill(tree.pid, signal.SIGKILL)
        wait_for(lambda: not runs(tree.guard), 60, "the guard")
        reap(tree.pid)
        assert "faster than its children can be filled" in mark.read_text()


@pytest.mark.usefixtures("orphans_are_reaped")
def test_recently_written_pages_are_not_left_to_the_helper(crckpt: Crckpt, tmp_path: Path) -> None:
    """All pages are recent here: the helper has nothing to fill and ends."""
    with restored_lazily(crckpt, tmp_path, "hot") as tree:
        wait_for(lambda: not is_incomplete(tree.pid), 60, "the end of the helper")
        assert tree.check() == "intact"


@pytest.mark.usefixtures("orphans_are_reaped")
def test_tree_is_ended_if_the_helper_that_fills_its_memory_is_killed(crckpt: Crckpt, tmp_path: Path) -> None:
    """The tree would read zeros in missing pages."""
    with restored_lazily(crckpt, tmp_path) as tree:
        os.kill(tree.helper, signal.SIGKILL)
        wait_for(lambda: not runs(tree.guard), 60, "the guard")
        # This process has adopted the tree, so it can wait for it.
        assert os.waitpid(tree.pid, 0)[1] == signal.SIGKILL
        # Its checkpoint is still there.
        crckpt.run("restore", JOB, "--detach")
        assert tree.check() == "intact"


@pytest.mark.usefixtures("orphans_are_reaped")
def test_memory_is_filled_completely_although_the_guard_process_was_killed(crckpt: Crckpt, tmp_path: Path) -> None:
    with restored_lazily(crckpt, tmp_path) as tree:
        os.kill(tree.guard, signal.SIGKILL)
        tree.go_on()
        wait_for(lambda: not runs(tree.helper), 60, "all memory")
        assert tree.check() == "intact"


@pytest.mark.usefixtures("orphans_are_reaped")
def test_tree_waits_for_missing_pages_if_helper_and_guard_were_killed(crckpt: Crckpt, tmp_path: Path) -> None:
    """Helper and guard were killed at once. The tree does not read zeros from missing pages."""
    with restored_lazily(crckpt, tmp_path) as tree:
        # The guard must not see the end of the helper.
        os.kill(tree.guard, signal.SIGSTOP)
        os.kill(tree.helper, signal.SIGKILL)
        os.kill(tree.guard, signal.SIGKILL)
        wait_for(lambda: not runs(tree.guard) and not runs(tree.helper), 60, "their end")
        (tmp_path / "report").unlink()
        (tmp_path / "go").touch()
        wait_for(lambda: waits_for_memory(tree.pid), 60, "the program to need its memory")
        assert not (tmp_path / "report").exists()
        refused = crckpt.run("dump", str(tree.pid), JOB, "--stop", status=20)
        assert f"PID {tree.pid} waits for memory that nobody fills" in refused.err
        assert f"kill -9 {tree.pid}" in refused.err
        os.kill(tree.pid, signal.SIGKILL)
        reap(tree.pid)
        (tmp_path / "go").unlink(missing_ok=True)
        crckpt.run("restore", JOB, "--detach")
        assert tree.check() == "intact"


@pytest.mark.usefixtures("orphans_are_reaped")
def test_helper_that_fills_memory_ends_with_the_tree(crckpt: Crckpt, tmp_path: Path) -> None:
    with restored_lazily(crckpt, tmp_path) as tree:
        os.kill(tree.pid, signal.SIGKILL)
        tree.go_on()
        wait_for(lambda: not runs(tree.guard), 60, "the helper")
        assert not list(Path("/run/crckpt/filling").glob(f"{tree.pid}-*"))


@pytest.mark.usefixtures("orphans_are_reaped")
def test_dump_waits_for_the_memory_fill(crckpt: Crckpt, tmp_path: Path) -> None:
    """The dump would miss pages that are not filled yet."""
    with restored_lazily(crckpt, tmp_path) as tree:
        assert tree.check() == "intact"
        with crckpt.start("dump", str(tree.pid), JOB, "--stop") as dump:
            wait_for(lambda: waits_for_mark(dump.pid), 60, "the dump to wait")
            tree.go_on()
            out, err = dump.communicate()
            assert dump.returncode == 0, (out, err)
            assert err.count(f"waiting until all memory of PID {tree.pid} is there") == 1
        reap(tree.pid)
        crckpt.run("restore", JOB, "--detach")
        assert tree.check() == "intact"


def waits_for_mark(pid: int) -> bool:
    """Whether a process, or one of its children, waits for a lock on the mark of a tree."""
    waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return any(int(words[5]) == pid for words in waiting)
