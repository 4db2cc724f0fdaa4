"""The result of a probe, and a child process to run one in: what it breaks, opens or enters ends with the child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from crckpt.host.opened import opened
from crckpt.host.process.signals import interrupts_allowed, interrupts_deferred
from crckpt.model import MEBIBYTE

GIBIBYTE: Final = 1 << 30

WITHIN_S = 10
"""Time limit of a probe. Programs that probes start have a shorter one, so that they end before."""

_UNKNOWN = "crckpt does not know whether this works"
_ENDING = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RAISED = 255
# Bytes that a pipe holds without a reader.
_MOST = 65536


class Fact(Struct, frozen=True):
    """The result of a probe, and its `key`, which scripts may use; a probe itself does not know it.

    `state` is ok, limited (works in part, or was not tried) or missing. `consequence` is what it means for the user,
    `fix` the command that repairs it, if there is one. `safe`: the command removes nothing, so that `doctor --fix` may
    run it, word by word, without a shell.
    """

    key: str
    state: str
    found: str
    consequence: str
    fix: str
    safe: bool


def ok(found: str, consequence: str = "") -> Fact:
    """The fact that something works."""
    return Fact("", "ok", found, consequence, "", safe=False)


def limited(found: str, consequence: str, fix: str = "") -> Fact:
    """The fact that something works in part, or could not be tried."""
    return Fact("", "limited", found, consequence, fix, safe=False)


def missing(found: str, consequence: str, fix: str = "", *, safe: bool = False) -> Fact:
    """The fact that something does not work."""
    return Fact("", "missing", found, consequence, fix, safe)


def run_with_capabilities(*names: str) -> str:
    """The fix for capabilities that crckpt lacks, named without `CAP_`."""
    added = " ".join(f"--cap-add {name}" for name in names)
    return f"run crckpt with {', '.join(f'CAP_{name}' for name in names)} (in a container: docker run {added} ...)"


def free_of(free: int, total: int) -> str:
    """Bytes that are free of a total, for people."""
    unit, name = (GIBIBYTE, "GiB") if total >= GIBIBYTE else (MEBIBYTE, "MiB")
    return f"{free / unit:.1f} {name} free of {total / unit:.1f}"


def probe_in_child(probe: Callable[[], Fact], within: int = WITHIN_S) -> Fact:
    """Run a probe in a child. If it raises, dies or takes more than `within` seconds, the outcome says so."""
    with interrupts_deferred():
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setpgid(0, 0)  # so that programs that it starts can be ended with it
                # While a call blocks, a Python handler would only record the signal.
                for number in _ENDING:
                    signal.signal(number, signal.SIG_DFL)
                signal.alarm(within)
                try:
                    outcome = probe()
                except Exception as error:  # one that fails must not hide the others
                    outcome = limited(f"the trial failed: {type(error).__name__}: {error}", _UNKNOWN)
                os.write(writing, msgspec.json.encode(outcome))
            finally:
                os._exit(0)
        os.close(writing)
        try:
            with interrupts_allowed():
                os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        finally:
            # No other process group has the child's number until the child is reaped.
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            status = wait_for_status(child)
            said = b""
            # Read what is in the pipe now: programs that the probe started may still have it open.
            os.set_blocking(reading, False)
            with suppress(BlockingIOError), opened(reading):
                said = os.read(reading, _MOST)
    if said:
        return msgspec.json.decode(said, type=Fact)
    if status == -signal.SIGALRM:
        return limited(f"no answer after {within} s", _UNKNOWN)
    return limited(f"the trial ended with {'status' if status >= 0 else 'signal'} {abs(status)}", _UNKNOWN)


def fork(action: Callable[[], int]) -> int:
    """Fork a child that exits with the result of `action`, or with 255 if it raises; return its PID."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(action())
        finally:
            os._exit(_RAISED)  # no exception may reach the parent's code in this copy of it
    return child


def wait_for_status(child: int) -> int:
    """Wait for a child; return its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_child(child: int) -> None:
    """End a child and wait for it."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
