"""End trees whose CRIU was killed, together with its crckpt, before it let them run.

Their processes wait for CRIU for ever, with their PIDs, ports and memory. Until it runs, each has CRIU's log open for
writing, a file that no other program can open: so none that runs is taken for one of them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterator
from functools import partial
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.proc.criu_log import CriuLog
from crckpt.host.proc.procfs import pids
from crckpt.host.process.signals import send_signal_if

# A killed process may have to free much memory first.
_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.005


def end_unfinished_trees(logs: Collection[CriuLog]) -> None:
    """End all processes that write these logs, of CRIUs that have surely ended; return when they are gone.

    Raises HostCannot if one does not end.
    """
    until = time.monotonic() + _WITHIN_S
    # Again and again: one may have started another meanwhile.
    while logs and (found := tuple(_find_writers(logs))):
        for pid in found:
            send_signal_if(pid, signal.SIGKILL, partial(_is_writer, pid, logs))
        if time.monotonic() >= until:
            # Or those that end start others: this must not go on for ever.
            left = (*proc.wait_until_gone(found, 1.0), *found)[0]
            raise HostCannot(
                f"PID {left}, which a CRIU that was killed has left, does not end",
                hint=f"find out why: ps -o pid,ppid,user,stat,wchan {left}",
            )
        time.sleep(_LOOK_S)


def _find_writers(logs: Collection[CriuLog]) -> Iterator[int]:
    for pid in pids():
        if _is_writer(pid, logs):
            yield pid


def _is_writer(pid: int, logs: Collection[CriuLog]) -> bool:
    return any(log.is_written_by(pid) for log in logs)
