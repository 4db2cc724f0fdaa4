"""Check whether CRIU and the processes that it restores make progress."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host import proc
from crckpt.host.proc import procfs
from crckpt.host.proc.status import read_bytes, read_stat, tracer
from crckpt.host.steps import limit

QUIET_S: Final = limit("CRCKPT_QUIET_S", 30)
"""CRIU hangs if it makes no progress for this many seconds."""

ANSWERED_BY_PROGRAMS: Final = ("request_wait_answer", "handle_userfault")
"""Functions of the kernel in which a task waits for a FUSE file system or a userfaultfd. Source: fs/userfaultfd.c."""

# Functions in which a task waits until another one has executed a program, at the top of its stack: all that the kernel
# answers only to who may trace it. Source: exec_update_lock in fs/proc/, kernel/.
_AWAITS_EXEC: Final = re.compile(
    r"\S+ (?:call_proc_|proc_|do_io_accounting|do_task_stat|mm_access|__do_sys_kcmp|pidfd_getfd|ptrace_attach)"
)

_UNINTERRUPTIBLE: Final = "D"


class Progress:
    """Detects progress of a restore: its log grows, or a process reads, writes, gets memory, starts or ends.

    CPU time is no progress: a hanging process may spin. While a process waits for a disk, the restore does not hang.
    """

    def __init__(self, log: Path) -> None:
        """`log` is CRIU's log, which may not exist yet."""
        self._log = log
        self._signs: object = None
        self._quiet = 0

    def is_stuck(self) -> bool:
        """Return whether there was no progress for QUIET_S seconds. Call it every second."""
        # Counts calls and reads no clock: CRIU may have been stopped together with us.
        before, self._signs = self._signs, _signs(self._log)
        self._quiet = self._quiet + 1 if self._signs is not None and self._signs == before else 0
        return self._quiet > QUIET_S


def _signs(log: Path) -> tuple[frozenset[int], int, int, int] | None:
    """Values that change with progress; None if a process waits for a disk."""
    ours = proc.read_process(os.getpid())
    assert ours is not None
    # The restored processes descend from CRIU or from us. Their PIDs are not known yet.
    pids = proc.read_tree(ours).pids
    if waits_for_a_disk(pids) and not waits_for_a_program(pids):
        return None
    others = [pid for pid in pids if pid != ours.pid]
    memory = 0
    for pid in others:
        with suppress(OSError):
            # The resident pages do not include hugetlb pages.
            memory += int(procfs.text(f"/proc/{pid}/statm").split()[1]) + read_bytes(pid, "HugetlbPages")
    return frozenset(others), sum(map(_bytes_moved, others)), memory, _size(log)


def dump_signs(criu: tuple[int, ...], tree: tuple[int, ...], log: Path) -> tuple[tuple[int, ...], int, int] | None:
    """Read what changes of CRIU and the tree while a dump makes progress; None if CRIU waits for a disk."""
    # CPU time counts here: CRIU may move pages for minutes without a read or write that the kernel counts.
    if waits_for_a_disk(criu) and not waits_for_a_program((*criu, *tree)):
        return None
    # What a process does that CRIU does not hold, or holds no more, is no work of the dump.
    held = [pid for pid in tree if _is_held(pid, criu)]
    return criu, sum(map(work_done, (*criu, *held))), _size(log)


def _is_held(pid: int, criu: tuple[int, ...]) -> bool:
    with suppress(OSError):
        return tracer(pid, pid) in criu
    return False


def _size(log: Path) -> int:
    with suppress(OSError):
        return log.stat().st_size
    return 0


def _bytes_moved(pid: int) -> int:
    with suppress(OSError):
        fields = procfs.parse_fields(procfs.text(f"/proc/{pid}/io"))
        # read_bytes and write_bytes would count disks only, neither pipes nor the page cache.
        return int(fields["rchar"]) + int(fields["wchar"])
    return 0


def waits_for_a_disk(pids: Iterable[int]) -> bool:
    """Return whether a thread of these processes waits uninterruptibly."""
    return _is_any(pids, lambda pid, tid: read_stat(pid, tid).state == _UNINTERRUPTIBLE)


def waits_for_a_program(pids: Iterable[int], calls: tuple[str, ...] = ANSWERED_BY_PROGRAMS) -> bool:
    """Return whether a thread of these processes waits in one of these functions of the kernel, for another program."""
    function = re.compile("|".join(calls))
    return _is_any(pids, lambda pid, tid: function.search(procfs.text(f"/proc/{pid}/task/{tid}/stack")))


def waits_for_an_exec(pids: Iterable[int]) -> bool:
    """Return whether the first thread of one of these processes waits until another process has executed a program."""

    def is_meant(pid: int, tid: int) -> object:
        is_waiting = tid == pid and read_stat(pid, tid).state == _UNINTERRUPTIBLE
        return is_waiting and _AWAITS_EXEC.match(procfs.text(f"/proc/{pid}/task/{tid}/stack"))

    return _is_any(pids, is_meant)


def _is_any(pids: Iterable[int], is_meant: Callable[[int, int], object]) -> bool:
    for pid, tid in ((each, tid) for each in pids for tid in procfs.living_threads(each)):
        with suppress(OSError):
            if is_meant(pid, tid):
                return True
    return False


def work_done(pid: int) -> int:
    """A number that grows while a process works: bytes read and written, page faults, CPU time; 0 if it has ended."""
    with suppress(OSError):
        stat = read_stat(pid)
        return _bytes_moved(pid) + stat.major_faults + stat.cpu_ticks
    return 0
