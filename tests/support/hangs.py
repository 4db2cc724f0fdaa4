"""A pytest plugin: a test that does not end in time fails, and the others go on."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

LIMIT = "--limit"
_STDERR = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    parser.addoption(LIMIT, type=float, default=300, help="seconds after which a test hangs (default: %(default)s)")


def pytest_configure(config: pytest.Config) -> None:
    """Keep stderr: while tests run, their output goes to a file."""
    config.stash[_STDERR] = os.dup(2)


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
    """Let a test fail that has not ended in time.

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
    faulthandler.dump_traceback_later(2 * limit, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


def _kill_forked() -> None:
    """Kill forks of this process that hang: pytest-xdist waits until all that have a worker's pipes have ended."""
    us = psutil.Process()
    for child in us.children():
        with suppress(psutil.Error):
            if child.cmdline() == us.cmdline():
                child.kill()
