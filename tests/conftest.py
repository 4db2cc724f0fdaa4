"""What all tests need: plugins of tests/support, and a machine that gives no PID twice in a run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest_plugins = ("hangs", "selection", "leftovers", "workers")

PID_MAX = Path("/proc/sys/kernel/pid_max")
MANY_PIDS = str(1 << 22)  # PID_MAX_LIMIT, linux/threads.h


def pytest_configure(config: pytest.Config) -> None:
    """A restore needs the PIDs that its dump has freed: in a whole run none comes round again.

    Where the kernel gives 32768 of them, those that run beside it take all of these in a minute or two.
    """
    # Child processes inherit ignored signals, for example from nohup or from a shell that started us in the background.
    usual_handlers = (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    )
    for number, usual in usual_handlers:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)
    if hasattr(config, "workerinput"):  # what a worker of pytest-xdist has
        return
    before = PID_MAX.read_text()
    try:
        PID_MAX.write_text(MANY_PIDS)
    except OSError:  # in a container, or without root
        return

    def set_back() -> None:
        PID_MAX.write_text(before)

    config.add_cleanup(set_back)
