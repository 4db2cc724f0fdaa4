"""What a whole run of the tests needs of the machine."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

PID_MAX = Path("/proc/sys/kernel/pid_max")
MANY_PIDS = str(1 << 22)  # PID_MAX_LIMIT, linux/threads.h

STDERR = pytest.StashKey[int]()
LIMIT = "--limit"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    parser.addoption(LIMIT, type=float, default=300, help="seconds after which a test hangs (default: %(default)s)")


def pytest_configure(config: pytest.Config) -> None:
    """A restore needs the PIDs that its dump has freed: in a whole run none comes round again.

    Where the kernel gives 32768 of them, those that run beside it take all of these in a minute or two.
    """
    # What we ignore, those that we start would ignore: as where a shell has put us into the background, or after nohup.
    usual_handlers = (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    )
    for number, usual in usual_handlers:
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


def _kill_forked() -> None:
    """Kill forks of this process that hang: pytest-xdist waits until all that have a worker's pipes have ended."""
    us = psutil.Process()
    for child in us.children():
        with suppress(psutil.Error):
            if child.cmdline() == us.cmdline():
                child.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """See `_fail_if_it_hangs`."""
    return (yield from _fail_if_it_hangs(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """See `_fail_if_it_hangs`."""
    return (yield from _fail_if_it_hangs(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """See `_fail_if_it_hangs`."""
    return (yield from _fail_if_it_hangs(item))


def _fail_if_it_hangs(item: pytest.Item) -> Iterator[None]:
    """Let a test fail that has not ended in time, and the others go on.

    pytest-timeout interrupts once: a `with Popen(...)` then waits again, and it leaves alone what follows a failure.
    """
    limit = item.config.getoption(LIMIT)

    def fail(*_: object) -> None:
        faulthandler.dump_traceback(2)
        _kill_forked()
        pytest.fail(f"hangs: takes more than {limit:g} s")

    usual = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, limit, limit / 4)
    # The signal may be blocked: end the process then.
    faulthandler.dump_traceback_later(2 * limit, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
