"""What a whole run of the tests needs of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

PID_MAX = Path("/proc/sys/kernel/pid_max")
MANY_PIDS = str(1 << 22)  # PID_MAX_LIMIT, linux/threads.h


def pytest_configure(config: pytest.Config) -> None:
    """A restore needs the PIDs that its dump has freed: in a whole run none comes round again.

    Where the kernel gives 32768 of them, those that run beside it take all of these in a minute or two.
    """
    if hasattr(config, "workerinput"):  # what a worker of pytest-xdist has
        return
    before = PID_MAX.read_text()
    try:
        PID_MAX.write_text(MANY_PIDS)
    except OSError:  # in a container
        return

    def set_back() -> None:
        PID_MAX.write_text(before)

    config.add_cleanup(set_back)
