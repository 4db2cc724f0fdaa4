"""Steps: named moments before something is created, written, synced, renamed or removed.

With CRCKPT_KILL_AT=NAME[:N] in the environment, the process ends itself by SIGKILL before its N-th (the first) step of
that name: so tests see what a crash leaves. With CRCKPT_STOP_AT it stops itself there, until it gets SIGCONT. Without
them a step costs nothing.

Other variables shorten limits, so that tests need not wait for them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TypeAlias

Watcher: TypeAlias = Callable[[str, tuple[object, ...]], None]

_watcher: Watcher | None = None


def step(name: str, *operands: object) -> None:
    """What `name` says happens next, with these paths, descriptors and bytes."""
    if _watcher is not None:
        _watcher(name, operands)


def watch(watcher: Watcher | None) -> None:
    """From now on `watcher` is called with the name and the operands of every step; None: nobody is."""
    global _watcher
    _watcher = watcher


def killer(at: str, sent: signal.Signals = signal.SIGKILL) -> Watcher:
    """What sends this process a signal before the step `at`, NAME or NAME:N."""
    wanted, _, number = at.partition(":")
    left = int(number or 1)

    def kill(name: str, _operands: tuple[object, ...]) -> None:
        nonlocal left
        left -= name == wanted
        if left == 0:
            left = -1
            os.kill(os.getpid(), sent)

    return kill


def limit(variable: str, usual: int) -> int:
    """Seconds: those that the environment has in `variable`, if they are fewer than the `usual` ones."""
    given = os.environ.get(variable, "")
    return min(int(given), usual) if given.isdecimal() and int(given) else usual


for _variable, _signal in (("CRCKPT_KILL_AT", signal.SIGKILL), ("CRCKPT_STOP_AT", signal.SIGSTOP)):
    if _variable in os.environ:
        watch(killer(os.environ[_variable], _signal))
