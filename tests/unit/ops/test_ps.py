"""Processes and locks of crckpt, and the end of trackers."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from keepers import KEEPER, answering, keeper_socket, leave_socket, listening, trackable
from msgspec.structs import replace
from smaller_bounds import smaller_bounds
from trees import wait_for

from crckpt.errors import HostCannot, UsageError
from crckpt.helper.kinds import REMOTE_CALLER
from crckpt.helper.start import start_helper
from crckpt.host import proc
from crckpt.ops.ps import end_trackers, list_processes
from crckpt.tracking.keeper import client
from crckpt.tracking.keeper.client import was_killed
from crckpt.tracking.keeper.protocol import Answer


@pytest.fixture
def root() -> Iterator[proc.Process]:
    """A program that a keeper may track."""
    with trackable() as found:
        yield found


def description(root: proc.Process) -> Answer:
    """What a keeper of this tree says, which this process is."""
    return Answer(keeper=replace(KEEPER, pid=os.getpid(), root=root.pid))


def wait_until_started(pid: int) -> None:
    """Wait until a helper has executed its program."""
    wait_for(lambda: REMOTE_CALLER.module in proc.command_line(pid), 10, "the helper to start")


def test_tracked_tree_is_listed_with_its_trackers_usage(root: proc.Process) -> None:
    with listening(root) as listener, answering(listener, description(root)):
        (found,) = (each for each in list_processes().trackers if each.keeper.root == root.pid)
    assert found.usage is not None
    assert found.usage.memory_bytes > 1 << 20


def test_ps_lists_a_helper_with_the_command_that_ends_it() -> None:
    helper = start_helper(REMOTE_CALLER)
    try:
        wait_until_started(helper.pid)
        (found,) = (each for each in list_processes().processes if each.pid == helper.pid)
        assert (found.kind, found.user, found.tree) == ("remote caller", "root", None)
        assert found.ends == REMOTE_CALLER.ends
    finally:
        helper.end()


@pytest.mark.parametrize("program", ["criu", "crckpt"])
def test_ps_lists_a_command_as_it_was_typed(tmp_path: Path, program: str) -> None:
    """The interpreter or loader and its long path are omitted."""
    script = tmp_path / program
    script.write_text("#!/bin/sh\necho\nread end\n")
    script.chmod(0o755)
    with subprocess.Popen([script, "dump", "4"], stdin=PIPE, stdout=PIPE, start_new_session=True) as started:
        assert started.stdout is not None
        started.stdout.readline()
        (found,) = (each for each in list_processes().processes if each.pid == started.pid)
        started.communicate(b"\n")
    assert (found.kind, found.program) == (program, f"{program} dump 4")


def test_ps_lists_a_lock_with_its_holder(tmp_path: Path) -> None:
    """Here a helper has inherited the lock."""
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        helper = start_helper(REMOTE_CALLER, keep=(lock.fileno(),))
    try:
        wait_until_started(helper.pid)
        (found,) = (each for each in list_processes().locks if each.name == str(tmp_path / "lock"))
        assert found.pid == helper.pid
    finally:
        helper.end()


def test_descriptors_of_another_users_process_are_not_read(tmp_path: Path) -> None:
    """Anybody can call a process so, with any number of locks and descriptors, and a long command line."""
    words = ["sh", "-c", "echo; read end", "-m", "crckpt.helper", "x" * 100_000]
    for user, is_read in ((0, True), (1234, False)):
        with (tmp_path / f"lock-{user}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, user=user, pass_fds=[lock.fileno()]) as started:
                assert started.stdout is not None
                started.stdout.readline()
                found = list_processes()
                started.communicate(b"\n")
        (row,) = (each for each in found.processes if each.pid == started.pid)
        assert len(row.program) < 5000
        assert (lock.name in {each.name for each in found.locks}) == is_read


def test_remains_of_a_killed_tracker_are_listed(root: proc.Process) -> None:
    leave_socket(root)
    (found,) = (each for each in list_processes().locks if each.name == str(keeper_socket(root)))
    assert (found.pid, found.ends) == (None, f"the next dump; crckpt ps --end {root.pid}")


def test_ps_ends_a_tracker_by_the_pid_of_its_tree(root: proc.Process) -> None:
    with listening(root) as listener, answering(listener, description(root), Answer()) as requests:
        result = end_trackers(str(root.pid))
    assert result.ended
    assert [each.keeper.root for each in result.trackers] == [root.pid]
    assert [request.do for request in requests] == ["describe", "end"]


def test_ps_end_of_an_untracked_tree_is_a_usage_error(root: proc.Process) -> None:
    with pytest.raises(UsageError) as refused:
        end_trackers(str(root.pid))
    assert refused.value.message == f"the tree of PID {root.pid} is not tracked"
    assert refused.value.hint == "list the tracked trees: crckpt ps"


def test_ps_end_forgets_a_killed_tracker(root: proc.Process) -> None:
    """Otherwise the next dump would start another."""
    leave_socket(root)
    result = end_trackers(str(root.pid))
    assert (result.trackers, result.ended) == ((), True)
    assert not was_killed(root)


def test_tracker_that_does_not_answer_is_listed_and_not_ended(root: proc.Process) -> None:
    with smaller_bounds(client, DESCRIBE_TIMEOUT_S=0.1), listening(root):
        (words,) = (words for words in list_processes().unanswered if str(os.getpid()) in words)
        assert words.startswith(f"its tracker (process {os.getpid()}) does not answer; end it: kill -KILL ")
        with pytest.raises(HostCannot, match="does not answer"):
            end_trackers(str(root.pid))
