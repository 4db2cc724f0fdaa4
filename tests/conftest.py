"""What a whole run of the tests needs of the machine."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

PID_MAX = Path("/proc/sys/kernel/pid_max")
MANY_PIDS = str(1 << 22)  # PID_MAX_LIMIT, linux/threads.h

STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """A restore needs the PIDs that its dump has freed: in a whole run none comes round again.

    Where the kernel gives 32768 of them, those that run beside it take all of these in a minute or two.
    """
    # What we ignore, those that we start would ignore: as where a shell has put us into the background.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)
    config.stash[STDERR] = os.dup(2)  # while tests run, their output goes to a file
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """See `_ended_if_it_hangs`."""
    return (yield from _ended_if_it_hangs(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """See `_ended_if_it_hangs`."""
    return (yield from _ended_if_it_hangs(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """See `_ended_if_it_hangs`."""
    return (yield from _ended_if_it_hangs(item))


def _ended_if_it_hangs(item: pytest.Item) -> Iterator[None]:
    """Say where it hangs, and end the process, in what pytest-timeout does not end.

    That is done by a signal, which may be blocked, and leaves alone what comes after a failure.
    """
    limit = item.config.getoption("timeout") or item.config.getini("timeout")
    faulthandler.dump_traceback_later(2 * float(limit), exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
