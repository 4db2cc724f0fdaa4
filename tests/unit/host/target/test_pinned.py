"""A target is held by a descriptor from the moment on in which its name was looked up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crckpt.errors import TargetNotRunning, UsageError
from crckpt.host.process.pidfd import HeldProcess
from crckpt.host.target import pinned

_FAKE_SYSTEMCTL = """#!/bin/sh
{start}
echo "Id=web.service
LoadState=loaded
ActiveState=active
SubState=running
MainPID={pid}
ControlGroup=/system.slice/web.service"
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_target_that_is_a_unit_is_pinned_to_its_main_process(systemctl: Path, sleeper: subprocess.Popen[bytes]) -> None:
    systemctl.write_text(_FAKE_SYSTEMCTL.format(start="", pid=sleeper.pid))
    with pinned("unit:web") as process:
        process.check()
        assert process.is_alive
        assert process.pid == sleeper.pid


def test_process_that_got_the_pid_after_the_query_is_refused(systemctl: Path) -> None:
    """The main process of the unit ends just after systemd has answered, and another process gets its PID."""
    start = "PATH=/usr/bin:/bin; sleep 0.1; sleep 5 </dev/null >/dev/null 2>&1 &"
    systemctl.write_text(_FAKE_SYSTEMCTL.format(start=start, pid="$!"))
    with (
        pytest.raises(UsageError, match="the process of unit:web has just been started"),
        pinned("unit:web"),
    ):
        pytest.fail("it is another one")


def test_ended_process_is_not_running(sleeper: subprocess.Popen[bytes]) -> None:
    process = HeldProcess(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert not process.is_alive
    with pytest.raises(TargetNotRunning, match=f"PID {sleeper.pid} ended"):
        process.check()
    process.close()
    with pytest.raises(TargetNotRunning):
        HeldProcess(sleeper.pid).check()
