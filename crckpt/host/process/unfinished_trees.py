"""End trees whose CRIU was killed, together with its crckpt, before it let them run.

Their processes wait for CRIU for ever, with their PIDs, ports and memory. Until it runs, each has CRIU's log open for
writing, as a file that no other program writes: so none that runs is taken for one of them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.proc.fd import writes_to
from crckpt.host.proc.procfs import pids

# A killed process may have to free much memory first.
_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.005


def end_unfinished_trees(logs: Collection[str]) -> None:
    """End all processes that write these logs, of CRIUs that have surely ended; return when they are gone.

    Raises HostCannot if one does not end.
    """
    until = time.monotonic() + _WITHIN_S
    # Again and again: one may have started another meanwhile.
    while logs and (found := tuple(_find_writers(logs))):
        for pid in found:
            _kill(pid, logs)
        left = proc.wait_until_gone(found, 1.0) if time.monotonic() >= until else ()
        if left:
            raise HostCannot(
                f"PID {left[0]}, which a CRIU that was killed has left, does not end",
                hint=f"find out why: ps -o pid,stat,wchan {left[0]}",
            )
        time.sleep(_LOOK_S)


def _find_writers(logs: Collection[str]) -> Iterator[int]:
    for pid in pids():
        if any(writes_to(pid, log) for log in logs):
            yield pid


def _kill(pid: int, logs: Collection[str]) -> None:
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            # The pidfd keeps naming one process: check that it is the one that was found.
            if any(writes_to(pid, log) for log in logs):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
