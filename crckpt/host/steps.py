"""Steps: named moments before something is created, written, synced, renamed or removed.

With CRCKPT_KILL_AT=NAME[:N] in the environment, the process ends itself by SIGKILL before its N-th (the first) step of
that name: so tests see what a crash leaves. Without it a step costs nothing.
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


def killer(at: str) -> Watcher:
    """What kills this process before the step `at`, NAME or NAME:N."""
    wanted, _, number = at.partition(":")
    left = int(number or 1)

    def kill(name: str, _operands: tuple[object, ...]) -> None:
        nonlocal left
        left -= name == wanted
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


if "CRCKPT_KILL_AT" in os.environ:
    watch(killer(os.environ["CRCKPT_KILL_AT"]))
