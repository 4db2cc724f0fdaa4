"""Commands of the user around a move."""

from __future__ import annotations

import os
import platform
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from trees import wait_for

from crckpt.errors import HostCannot
from crckpt.migrate.request import MigrateRequest
from crckpt.migrate.source import hooks
from crckpt.migrate.source.hooks import run_hook, run_late_hook
from crckpt.model import JobName, MoveId
from crckpt.store.moves import begin_move

NAMES = ("CRCKPT_MOVE_ID", "CRCKPT_MOVE_STEP", "CRCKPT_SOURCE", "CRCKPT_DESTINATION", "CRCKPT_JOB")


MOVE = begin_move("source", JobName("app"), "root@there", MoveId("0123456789abcdef"))


def request(*, before_freeze: str = "", address_hook: str = "") -> MigrateRequest:
    return MigrateRequest("812", "root@there", before_freeze=before_freeze, address_hook=address_hook)


@pytest.mark.parametrize("name", ["before-freeze", "prepare", "commit", "abort"])
def test_hook_gets_the_environment_of_the_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: hooks.MoveStep
) -> None:
    """The hook runs in the directory and with the variables of the user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THE_USER", "kept")
    words = " ".join(f"${variable}" for variable in (*NAMES, "OF_THE_USER"))
    asked, other = f"echo {words} > asked", "touch other"
    if name == "before-freeze":
        run_hook(request(before_freeze=asked, address_hook=other), MOVE, name)
    else:
        run_hook(request(before_freeze=other, address_hook=asked), MOVE, name)
    assert (tmp_path / "asked").read_text() == f"0123456789abcdef {name} {platform.node()} root@there app kept\n"
    assert not (tmp_path / "other").exists()


def test_hook_that_is_not_given_is_not_called() -> None:
    run_hook(request(), MOVE, "before-freeze")
    assert run_late_hook(request(before_freeze="false"), MOVE, "commit") is None


def test_hook_error_has_output_and_command() -> None:
    with pytest.raises(HostCannot) as caught:
        run_hook(request(address_hook="echo no such backend; echo really >&2; exit 3"), MOVE, "prepare")
    assert caught.value.message == "--address-hook failed at step prepare (exit status 3): no such backend; really"
    assert "CRCKPT_MOVE_STEP=prepare" in caught.value.hint
    assert "exit 3" in caught.value.hint
    with pytest.raises(HostCannot, match=r"--before-freeze failed \(signal 9\), without output"):
        run_hook(request(before_freeze="kill -9 $$"), MOVE, "before-freeze")


def test_only_the_end_of_a_long_output_is_returned() -> None:
    with pytest.raises(HostCannot) as caught:
        run_hook(request(before_freeze="seq 100000; exit 1"), MOVE, "before-freeze")
    assert caught.value.message.endswith("; 99999; 100000")
    assert len(caught.value.message) < 8192


@pytest.mark.parametrize("name", ["commit", "abort"])
def test_failure_of_an_address_hook_after_the_commit_is_reported(name: Literal["commit", "abort"]) -> None:
    found = run_late_hook(request(address_hook="exit 1"), MOVE, name)
    assert found is not None
    assert f"at step {name} (exit status 1)" in found.what
    assert f"CRCKPT_MOVE_STEP={name}" in found.remedy


def test_address_hook_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child processes of the hook end with it."""
    monkeypatch.setattr(hooks, "SECONDS", {"prepare": 0.2})
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    pidfile = f"/proc/{os.getpid()}/fd/{writing}"
    with pytest.raises(HostCannot, match=r"at step prepare: no answer after 0\.2 s from: "):
        run_hook(request(address_hook=f"sh -c 'echo $$; exec sleep 1000' > {pidfile}"), MOVE, "prepare")
    pid = int(os.read(reading, 100))
    for descriptor in (reading, writing):
        os.close(descriptor)
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)


INTERRUPTED_PROGRAM = """
import sys
from crckpt.host.process.signals import handle_interrupts
from crckpt.migrate.request import MigrateRequest
from crckpt.migrate.source.hooks import run_hook
from crckpt.store.moves import begin_move
handle_interrupts()
run_hook(MigrateRequest("812", "there", address_hook=sys.argv[1]), begin_move("source", "app", "there"), "prepare")
"""


def test_interruption_ends_an_address_hook(tmp_path: Path) -> None:
    """The hook and its child processes end, however early the interruption is."""
    hook = f"echo $$ > {tmp_path}/pid; kill -TERM $PPID; sleep 1000"
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_PROGRAM, hook], capture_output=True, text=True, check=False
    )
    assert "Interrupted: interrupted by SIGTERM" in result.stderr
    # An orphan that has been killed is reaped soon.
    group = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_group(group), 60, "the hook to end")


def is_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_background_processes_of_a_hook_are_not_waited_for() -> None:
    reading, writing = os.pipe()
    run_hook(request(before_freeze=f"sleep 1000 & echo $! > /proc/{os.getpid()}/fd/{writing}"), MOVE, "before-freeze")
    pid = int(os.read(reading, 100))
    for descriptor in (reading, writing):
        os.close(descriptor)
    os.kill(pid, signal.SIGKILL)
