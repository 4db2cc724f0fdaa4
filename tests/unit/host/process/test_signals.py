"""Interruptions become an exception, where and when they may. Each case is a program of its own: signals are global."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import os, signal, subprocess, sys
from crckpt.errors import Interrupted
from crckpt.host.process.signals import (
    handle_interrupts, interrupts_allowed, interrupts_deferred, ignore_interrupts, forward_signals,
)

def interrupt(name):
    os.kill(os.getpid(), signal.Signals[name])

def say(word):
    print(word, flush=True)

handle_interrupts()
try:
{body}
    say("went on")
except (Interrupted, ValueError) as error:
    say(str(error))
"""


def output_of(body: str) -> list[str]:
    """The lines that a program prints in which `body` is interrupted."""
    code = PRELUDE.format(body=textwrap.indent(textwrap.dedent(body), "    "))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_each_signal_is_raised_by_name(name: str) -> None:
    assert output_of(f"interrupt('{name}')") == [f"interrupted by {name}"]


def test_interrupt_is_deferred_to_the_end_of_the_block() -> None:
    body = """
        with interrupts_deferred():
            interrupt("SIGINT")
            say("in the block")
    """
    assert output_of(body) == ["in the block", "interrupted by SIGINT"]


def test_deferred_interrupt_is_raised_only_at_the_end_of_the_outermost_block() -> None:
    body = """
        with interrupts_deferred():
            with interrupts_deferred():
                interrupt("SIGTERM")
            say("in the outer block")
    """
    assert output_of(body) == ["in the outer block", "interrupted by SIGTERM"]


def test_pending_interrupt_is_raised_when_allowed() -> None:
    body = """
        with interrupts_deferred():
            interrupt("SIGTERM")
            try:
                with interrupts_allowed():
                    say("never")
            except Interrupted:
                say("let in")
            say("in the block")
    """
    assert output_of(body) == ["let in", "in the block", "went on"]


def test_interrupt_is_raised_in_a_block_that_allows_it() -> None:
    body = """
        with interrupts_deferred():
            with interrupts_allowed():
                say("quiet")
            try:
                with interrupts_allowed():
                    interrupt("SIGHUP")
                    say("never")
            except Interrupted:
                say("let in")
    """
    assert output_of(body) == ["quiet", "let in", "went on"]


def test_interrupt_is_deferred_again_after_the_block_that_allows_it() -> None:
    body = """
        with interrupts_deferred():
            with interrupts_allowed():
                pass
            interrupt("SIGHUP")
            say("in the block")
    """
    assert output_of(body) == ["in the block", "interrupted by SIGHUP"]


def test_second_interrupt_does_not_cut_cleanup_short() -> None:
    body = """
        try:
            interrupt("SIGINT")
        finally:
            interrupt("SIGINT")
            with interrupts_deferred():
                interrupt("SIGTERM")
            say("cleaned up")
    """
    assert output_of(body) == ["cleaned up", "interrupted by SIGINT"]


def test_interruption_during_an_error_does_not_hide_the_error() -> None:
    body = """
        with interrupts_deferred():
            interrupt("SIGTERM")
            raise ValueError("the block's own")
    """
    assert output_of(body) == ["the block's own"]


def test_block_that_follows_a_failed_one_can_be_interrupted() -> None:
    body = """
        try:
            with interrupts_deferred():
                interrupt("SIGTERM")
                raise ValueError("the block's own")
        except ValueError:
            say("failed")
        with interrupts_deferred():
            say("in the next block")
    """
    assert output_of(body) == ["failed", "in the next block", "interrupted by SIGTERM"]


def test_interruption_after_ignore_interrupts_has_no_effect() -> None:
    body = """
        with interrupts_deferred():
            interrupt("SIGTERM")
            ignore_interrupts()
        interrupt("SIGINT")
    """
    assert output_of(body) == ["went on"]


PROGRAM = """
        child = subprocess.Popen(
            [sys.executable, "-uc", "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(8)); "
            "signal.signal(signal.SIGINT, lambda *_: exit(9)); print('there')\\nwhile True: time.sleep(0.05)"],
            stdout=subprocess.PIPE,
        )
        child.stdout.readline()
"""


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 8), ("SIGINT", 9)])
def test_signals_to_crckpt_are_forwarded_to_the_program(name: str, status: int) -> None:
    body = f"""{PROGRAM}
        forward_signals(child.pid, on_our_terminal=False)
        interrupt("{name}")
        say(child.wait(60))
        interrupt("{name}")
    """
    assert output_of(body) == [str(status), "went on"]


def test_signal_that_was_deferred_is_forwarded_to_the_program() -> None:
    body = f"""{PROGRAM}
        with interrupts_deferred():
            interrupt("SIGTERM")
            forward_signals(child.pid, on_our_terminal=False)
            say(child.wait(60))
    """
    assert output_of(body) == ["8", "went on"]


def test_typed_signal_is_not_forwarded_on_our_terminal() -> None:
    body = f"""{PROGRAM}
        forward_signals(child.pid, on_our_terminal=True)
        interrupt("SIGINT")
        interrupt("SIGTERM")
        say(child.wait(60))
    """
    assert output_of(body) == ["8", "went on"]


def test_inherited_ignored_signal_stays_ignored() -> None:
    """nohup ignores SIGHUP, for example."""
    body = """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        handle_interrupts()
        interrupt("SIGHUP")
        say("in the block")
        interrupt("SIGTERM")
    """
    assert output_of(body) == ["in the block", "interrupted by SIGTERM"]
