"""End processes that a restore has left after it failed or its CRIU was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.proc import procfs
from crckpt.host.process.signals import send_signal
from crckpt.host.syscalls.prctl import is_child_subreaper, set_child_subreaper


@contextmanager
def ended_on_failure(pids: Collection[int]) -> Iterator[None]:
    """If the block fails, end those of these processes that descend from us."""
    # A PID alone is no proof: another program may have got it. So orphans of this block become our children, and only
    # children of ours are ended.
    with _orphans_adopted():
        try:
            yield
        except BaseException:
            # Repeat this: when a process ends, its children become ours.
            while ours := [pid for pid in pids if _is_child(pid)]:
                for pid in ours:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            raise


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
    child = proc.read_process(pid)
    if child is not None and (child.state == "stopped" or _has_stopped_child(pid)):
        _send(pid, signal.SIGCONT, lambda process: process.state == "stopped")


def _has_stopped_child(pid: int) -> bool:
    with suppress(OSError):
        found = map(proc.read_process, procfs.children(pid, pid))
        return any(child is not None and child.state == "stopped" for child in found)
    return False


def _send(pid: int, number: signal.Signals, is_meant: Callable[[proc.Process], bool]) -> None:
    process = proc.read_process(pid)
    if process is None:
        return
    for each in filter(is_meant, proc.read_tree(process).processes):
        send_signal(each.identity, number)


def _is_child(pid: int) -> bool:
    process = proc.read_process(pid)
    return process is not None and process.ppid == os.getpid()


@contextmanager
def _orphans_adopted() -> Iterator[None]:
    was_enabled = is_child_subreaper()
    set_child_subreaper(enabled=True)
    try:
        yield
    finally:
        set_child_subreaper(enabled=was_enabled)
