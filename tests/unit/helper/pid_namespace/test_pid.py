"""A pid namespace for a restored tree: its init waits, passes signals on, and ends with the root's status."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from held_calls import held_before_call
from own_process import descriptors

from crckpt.errors import HostCannot
from crckpt.helper.pid_namespace.client import PidNamespace, pid_namespace
from crckpt.host import proc
from crckpt.host.process import run

ROOT = 3
"""In a new namespace: 1 is its init, 2 the shell that `nsenter` starts, 3 what the shell leaves behind."""


@pytest.fixture(autouse=True, scope="module")
def namespaces_can_be_made() -> None:
    """Skip where namespaces cannot be made."""
    result = run.run(["unshare", "--pid", "--fork", "--mount-proc", "true"])
    if not result.ok:
        pytest.skip(f"no pid namespace can be made here: {result.output.strip()}")


def left_behind(init: int, script: str, parent: str = "exit 0") -> None:
    """Start a script in the namespace whose `parent` ends at once; wait until the script has printed its first line."""
    command = ["nsenter", "--target", str(init), "--pid", "--mount", "sh", "-c", f"({script}) & {parent}"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"


def number_inside(pid: int) -> int:
    """The PID of the process in its own namespace; 0 if it has ended."""
    found = proc.read_process(pid)
    return found.ns_pids[-1] if found else 0


def status_of(parent: int) -> int:
    with os.fdopen(os.pidfd_open(parent)) as pidfd:
        assert select.select([pidfd], [], [], 20)[0], "the namespace did not end"
    return os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1])


def test_exit_status_of_the_root_is_that_of_its_pid_namespace() -> None:
    with pid_namespace(ROOT) as namespace:
        left_behind(namespace.init, "echo there; exec >/dev/null; sleep 0.1; exit 9")
    assert status_of(namespace.parent) == 9


@pytest.mark.parametrize("script", ["sleep 0.2; exit 9", "exit 9"])
def test_exit_status_of_a_root_that_appears_while_init_checks_the_lock_is_returned(script: str) -> None:
    with ExitStack() as stack:
        with pid_namespace(ROOT) as namespace:
            stack.enter_context(held_before_call(namespace.init, "recvfrom"))
            left_behind(namespace.init, f"echo there; exec >/dev/null; {script}")
        stack.close()
        assert status_of(namespace.parent) == 9


def test_exit_status_of_a_root_that_ends_before_its_parent_is_returned() -> None:
    with pid_namespace(ROOT) as namespace:
        left_behind(namespace.init, "echo there; exit 9", parent="exec sleep 0.3")
    assert status_of(namespace.parent) == 9


def test_exit_status_of_a_root_killed_by_a_signal_is_128_plus_its_number() -> None:
    with pid_namespace(ROOT) as namespace:
        left_behind(namespace.init, "echo there; exec >/dev/null; exec sleep 60")
        assert proc.find_ended_tasks([(ROOT, ROOT), (99, 99)], namespace.init) == (99,)
        (root,) = (pid for pid in proc.children(namespace.init) if number_inside(pid) == ROOT)
    os.kill(root, signal.SIGKILL)
    assert status_of(namespace.parent) == 128 + signal.SIGKILL


@pytest.mark.parametrize("name", ["TERM", "HUP", "USR1"])
def test_signals_sent_to_init_reach_the_root(name: str) -> None:
    with pid_namespace(ROOT) as namespace:
        left_behind(namespace.init, f"trap 'exit 6' {name}; echo there; exec >/dev/null; while :; do sleep 0.05; done")
    os.kill(namespace.init, signal.Signals[f"SIG{name}"])
    assert status_of(namespace.parent) == 6


def test_init_of_the_pid_namespace_reaps_other_orphans() -> None:
    with pid_namespace(ROOT) as namespace:
        left_behind(namespace.init, "echo there; exec >/dev/null; exec sleep 60")
        left_behind(namespace.init, "echo there; exec >/dev/null; sleep 0.02")
        others = [pid for pid in proc.children(namespace.init) if number_inside(pid) != ROOT]
        assert proc.wait_until_gone(others, 20) == ()
        assert len(proc.children(namespace.init)) == 1
        os.kill(namespace.parent, signal.SIGKILL)
        assert proc.wait_until_gone([namespace.init], 20) == ()
    assert status_of(namespace.parent) == -signal.SIGKILL


def test_exception_in_the_block_ends_the_pid_namespace() -> None:
    made: list[PidNamespace] = []

    def fail_inside() -> None:
        with pid_namespace(ROOT) as namespace:
            made.append(namespace)
            left_behind(namespace.init, "echo there; exec >/dev/null; exec sleep 60")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_inside()
    assert proc.wait_until_gone([made[0].init, made[0].parent], 20) == ()


def test_pid_namespace_ends_if_its_owner_dies_before_the_tree_runs() -> None:
    with pid_namespace(99) as namespace:
        pass
    assert status_of(namespace.parent) == 1
    assert proc.wait_until_gone([namespace.init], 20) == ()


def test_pid_namespace_leaks_no_descriptor() -> None:
    before = descriptors()
    with pid_namespace(99) as namespace:
        pass
    status_of(namespace.parent)
    assert descriptors() == before


def test_failure_to_create_a_namespace_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o700)
    # crckpt does not pass its own environment on: a PATH of ours would change nothing.
    monkeypatch.setitem(run.ENVIRONMENT, "PATH", str(tmp_path))
    with pytest.raises(HostCannot, match="Operation not permitted"), pid_namespace(ROOT):
        pytest.fail("there is no namespace")
