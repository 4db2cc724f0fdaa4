"""Named moments ("steps") before something is created, written, synced, renamed or removed.

Tests see what a crash leaves: with CRCKPT_KILL_AT=NAME[:N] in the environment, the process kills itself before its
N-th step (default: the first) of that name. With EARLIER>NAME[:N] only steps after the first step EARLIER count. With
CRCKPT_STOP_AT it stops itself there until it gets SIGCONT. With CRCKPT_STEPS_FILE=FILE it adds the name of each step
to a file. Without these variables a step does nothing.

Other variables shorten time limits for tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TypeAlias

Watcher: TypeAlias = Callable[[str, tuple[object, ...]], None]

_watcher: Watcher | None = None


def step(name: str, *operands: object) -> None:
    """Report that the step `name` comes next, with its paths, descriptors and bytes."""
    if _watcher is not None:
        _watcher(name, operands)


def watch(watcher: Watcher | None) -> None:
    """Call `watcher` with the name and the operands of every step from now on; None ends that."""
    global _watcher
    _watcher = watcher


def killer(at: str, sent: signal.Signals = signal.SIGKILL) -> Watcher:
    """A watcher that sends this process a signal before the step `at`, NAME or NAME:N, perhaps with EARLIER> before."""
    earlier, _, last = at.rpartition(">")
    wanted, _, number = last.partition(":")
    left = int(number or 1)

    def kill(name: str, _operands: tuple[object, ...]) -> None:
        nonlocal left, earlier
        if earlier:
            earlier = "" if name == earlier else earlier
            return
        left -= name == wanted
        if left == 0:
            left = -1
            os.kill(os.getpid(), sent)

    return kill


def recorder(path: str) -> Watcher:
    """A watcher that adds the name of each step to the file `path`."""

    def record(name: str, _operands: tuple[object, ...]) -> None:
        with open(path, "a") as file:  # noqa: PTH123 pathlib takes long to import
            file.write(f"{name}\n")

    return record


def limit(variable: str, usual: int) -> int:
    """A time limit in seconds: that in the environment `variable`, but at most the `usual` one."""
    given = os.environ.get(variable, "")
    # The environment can only shorten it: a longer limit could keep a tree frozen.
    return min(int(given), usual) if given.isdecimal() and int(given) else usual


if "CRCKPT_STEPS_FILE" in os.environ:
    watch(recorder(os.environ["CRCKPT_STEPS_FILE"]))
for _variable, _signal in (("CRCKPT_KILL_AT", signal.SIGKILL), ("CRCKPT_STOP_AT", signal.SIGSTOP)):
    if _variable in os.environ:
        watch(killer(os.environ[_variable], _signal))
