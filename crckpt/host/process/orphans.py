"""End processes that a restore has left after it failed or its CRIU was killed.

If its crckpt was killed, too, they wait for CRIU for ever, with their PIDs, ports and memory. Until a tree runs, each
process has CRIU's log open for writing, a file that no other program can open: none that runs is mistaken for one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.budget import finish_within
from crckpt.host.proc import procfs
from crckpt.host.proc.live_root import CriuLog
from crckpt.host.process.signals import send_signal, send_signal_if
from crckpt.host.syscalls.own_process import is_child_subreaper, set_child_subreaper

# A killed process may have to free much memory first.
_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.005
# On a busy machine a thread may wait long for a processor, and a process that is not examined is left alone.
_ANSWERED_WITHIN_S: Final = 2.0
_LOOKS_FOR_S: Final = 60.0


@contextmanager
def ended_on_failure(pids: Collection[int]) -> Iterator[None]:
    """If the block fails, end those of these processes that descend from us."""
    # A PID alone is no proof: another program may have got it. So orphans of this block become our children, and only
    # children of ours are ended.
    was_enabled = is_child_subreaper()
    set_child_subreaper(enabled=True)
    try:
        yield
    except BaseException:
        # Repeat this: when a process ends, its children become ours.
        while ours := frozenset(pids).intersection(proc.children(os.getpid())):
            for pid in ours:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        raise
    finally:
        set_child_subreaper(enabled=was_enabled)


class Ending(Struct, frozen=True):
    """The end of a process: its exit status, or minus the signal; None if nobody knows."""

    code: int | None

    @property
    def clause(self) -> str:
        """The end of a clause, like ` with status 1`; empty if it is not known."""
        if self.code is None:
            return ""
        return f" with status {self.code}" if self.code >= 0 else f" by signal {-self.code}"


def find_ending(pid: int) -> Ending | None:
    """Find how a process, perhaps our child, has ended; None if it is alive. A child still has to be waited for."""
    with suppress(ChildProcessError):
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # WNOWAIT: the caller still waits for it
        if found is None:
            return None
        return Ending(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)
    process = proc.read_process(pid)
    return Ending(None) if process is None or process.state == "zombie" else None


def end_with_descendants(pid: int) -> None:
    """SIGKILL a child of ours and all its descendants. The child still has to be waited for."""
    _send(pid, signal.SIGKILL, lambda _: True)


def continue_with_descendants(pid: int) -> None:
    """SIGCONT a child of ours and its descendants if they are stopped."""
    with suppress(OSError):
        nearest = (proc.read_process(each) for each in (pid, *procfs.children(pid, pid)))
        if any(process is not None and process.state == "stopped" for process in nearest):
            _send(pid, signal.SIGCONT, lambda process: process.state == "stopped")


def _send(pid: int, number: signal.Signals, is_meant: Callable[[proc.Process], bool]) -> None:
    process = proc.read_process(pid)
    if process is None:
        return
    for each in filter(is_meant, proc.read_tree(process).processes):
        send_signal(each.identity, number)


def end_unfinished_trees(logs: Collection[CriuLog]) -> None:
    """End all processes that write these logs, of CRIUs that have surely ended; return when they are gone.

    Raises HostCannot if one does not end, or if there are too many processes that cannot be examined.
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
    until = time.monotonic() + _LOOKS_FOR_S
    for pid in procfs.pids():
        if time.monotonic() >= until:
            raise HostCannot(
                f"the kernel does not say within {_LOOKS_FOR_S:g} s which processes a CRIU that was killed has left",
                hint=f"find out what PID {pid} and its neighbours wait for: ps -o pid,ppid,user,stat,args {pid}",
            )
        if _is_writer(pid, logs):
            yield pid


def _is_writer(pid: int, logs: Collection[CriuLog]) -> bool:
    # A process of which the kernel says nothing executes a program: it does not wait in CRIU's code.
    with suppress(TimeoutError):
        return finish_within(_ANSWERED_WITHIN_S, lambda: any(log.is_written_by(pid) for log in logs))
    return False
