"""A signal reaches one process, and no other that has got its PID meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess

from msgspec.structs import replace

from crckpt.host.proc import identify
from crckpt.host.process.signals import send_signal, send_signal_if


def test_other_process_with_the_pid_gets_no_signal() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        found = identify(process.pid)
        assert found is not None
        send_signal(replace(found, start=found.start - 1), signal.SIGKILL)
        send_signal_if(process.pid, signal.SIGKILL, lambda: False)
        assert process.poll() is None
        send_signal(found, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL


def test_process_that_gets_the_pid_meanwhile_gets_no_signal() -> None:
    """The signal is for the former process with the PID, which has ended and was reaped."""
    process = subprocess.Popen(["sleep", "60"])

    def end() -> bool:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return True

    send_signal_if(process.pid, signal.SIGUSR1, end)
    send_signal_if(process.pid, signal.SIGUSR1, lambda: True)
