"""Interruptions become an exception, where and when they may."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from crckpt.errors import Interrupted
from crckpt.host.signals import interruptible, interrupts_let_in, interrupts_put_off

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def taken() -> Iterator[None]:
    """Interruptions are taken, and the test runner's own handlers come back afterwards."""
    before = {number: signal.getsignal(number) for number in ASKING}
    interruptible()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupt(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", ASKING)
def test_each_is_raised_by_name(number: signal.Signals) -> None:
    with pytest.raises(Interrupted, match=f"interrupted by {number.name}"):
        interrupt(number)


def test_put_off_until_the_end() -> None:
    done = []
    with pytest.raises(Interrupted, match="SIGINT"), interrupts_put_off():
        interrupt(signal.SIGINT)
        done.append("the block went on")
    assert done


def test_it_is_raised_once() -> None:
    with pytest.raises(Interrupted), interrupts_put_off():
        interrupt()
    with interrupts_put_off():
        pass


def test_only_the_outermost_block_raises() -> None:
    done = []
    with pytest.raises(Interrupted), interrupts_put_off():
        with interrupts_put_off():
            interrupt()
        done.append("inner")
        interrupt()
        done.append("outer")
    assert done == ["inner", "outer"]


def test_what_waits_is_let_in_at_once() -> None:
    done = []
    with interrupts_put_off():
        interrupt()
        with pytest.raises(Interrupted), interrupts_let_in():
            done.append("never")
    assert done == []


def test_let_in_while_it_lasts_and_put_off_again_after() -> None:
    done = []
    with pytest.raises(Interrupted, match="SIGHUP"), interrupts_put_off():
        with pytest.raises(Interrupted, match="SIGTERM"), interrupts_let_in():
            interrupt()
            done.append("never")
        interrupt(signal.SIGHUP)
        done.append("put off again")
    assert done == ["put off again"]


def test_a_failure_is_not_hidden_by_an_interruption() -> None:
    with pytest.raises(ValueError, match="the block's own"), interrupts_put_off():
        interrupt()
        raise ValueError("the block's own")
    with pytest.raises(Interrupted), interrupts_put_off():
        pass
