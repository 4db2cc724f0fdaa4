"""Processes and their trees, combined from several files of /proc. Reading stops and changes nothing."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from crckpt.host.proc import procfs
from crckpt.host.proc.namespaces import namespace, read_namespaces
from crckpt.host.proc.stat import read_stat, start_time
from crckpt.host.proc.status import read_status

_SIGTRAP: Final = 1 << signal.SIGTRAP - 1  # signals count from 1 in the masks of /proc/PID/status
_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "dead",
}


class Process(Struct, frozen=True):
    """A live process. `start` is its start time in clock ticks after boot: with the PID it names it for ever.

    `ns_pids` and `ns_sids` are its PIDs and its sessions from our pid namespace inwards, a session whose leader is
    outside the namespace as 0; `namespaces` maps kind to inode. `uids` and `gids` are real,
    effective, saved and file system ids. `trapped` is whether SIGTRAP waits for it, as it does at a breakpoint.
    `seccomp` is 0, 1 (strict) or 2 (filter), of its first thread. Its parent gets `exit_signal` when it ends.
    """

    pid: int
    ppid: int
    pgid: int
    sid: int
    comm: str
    state: str
    start: int
    threads: tuple[int, ...]
    ns_pids: tuple[int, ...]
    tracer: int
    uids: tuple[int, ...]
    gids: tuple[int, ...]
    namespaces: tuple[tuple[str, int], ...]
    is_kernel_thread: bool
    trapped: bool = False
    seccomp: int = 0
    ns_sids: tuple[int, ...] = ()
    exit_signal: int = signal.SIGCHLD

    @property
    def has_ended(self) -> bool:
        """Whether it runs no code any more, although its parent has not reaped it."""
        return self.state in ("zombie", "dead")


class Tree(Struct, frozen=True):
    """The processes below and with `root` in the order of CRIU: root first, each child with its own, oldest first."""

    root: Process
    processes: tuple[Process, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        """PIDs as we see them."""
        return tuple(process.pid for process in self.processes)


def read_process(pid: int) -> Process | None:
    """The process with that PID, or None if there is none (a thread's id is no PID, though /proc answers to it)."""
    try:
        stat = read_stat(pid)
        status = read_status(pid)
        threads = procfs.threads(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    if int(status["Tgid"]) != pid:
        return None
    return Process(
        pid=pid,
        ppid=stat.ppid,
        pgid=stat.pgid,
        sid=stat.sid,
        comm=stat.comm,
        state=_STATES.get(stat.state, stat.state),
        start=stat.start,
        threads=threads,
        ns_pids=tuple(int(part) for part in status.get("NSpid", str(pid)).split()),
        tracer=int(status.get("TracerPid", "0")),
        uids=tuple(int(part) for part in status["Uid"].split()),
        gids=tuple(int(part) for part in status["Gid"].split()),
        namespaces=read_namespaces(pid),
        is_kernel_thread=stat.is_kernel_thread,
        trapped=any(int(status.get(mask, "0"), 16) & _SIGTRAP for mask in ("SigPnd", "ShdPnd")),
        seccomp=int(status.get("Seccomp", "0")),
        exit_signal=stat.exit_signal,
        ns_sids=tuple(int(part) for part in status.get("NSsid", str(stat.sid)).split()),
    )


def cpu_seconds(tree: Tree) -> float:
    """The CPU time that the processes of a tree have used."""
    ticks = 0
    for process in tree.processes:
        with suppress(OSError):
            ticks += read_stat(process.pid).cpu_ticks
    return ticks / os.sysconf("SC_CLK_TCK")


def read_tree(root: Process) -> Tree:
    """`root` with all its living descendants. Leave out processes that end at the same time.

    Also leave out another process that has got the PID of one of them, with its children.
    """
    # Read the parent of every process once: /proc/PID/task/TID/children is a file for each thread, and may miss
    # children while others end (proc_tid_children(5)).
    children: dict[int, list[int]] = {}
    for pid, ppid in _parents():
        children.setdefault(ppid, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        parent = waiting.pop()
        found.append(parent)
        below = [read for pid in children.get(parent.pid, ()) if (read := read_process(pid)) is not None]
        # Its children are known by its PID: that must still be its own after they were read.
        if below and is_current(parent):
            own = (child for child in below if child.ppid == parent.pid)
            waiting += sorted(own, key=lambda child: (child.start, child.pid), reverse=True)
    return Tree(root, tuple(found))


def is_current(process: Process) -> bool:
    """Return whether the PID still belongs to this process: then what was read by that PID since `process` is of it."""
    # A process that gets the PID later starts later, in a clock tick of its own: PIDs are not used again within one.
    return start_time(process.pid) == process.start


def children(pid: int) -> tuple[int, ...]:
    """PIDs of the living children of a process."""
    return tuple(child for child, parent in _parents() if parent == pid)


def ancestors(pid: int) -> tuple[int, ...]:
    """PIDs of the parent, its parent, and so on up to 1."""
    found: list[int] = []
    process = read_process(pid)
    while process is not None and process.ppid > 0:
        found.append(process.ppid)
        process = read_process(process.ppid)
    return tuple(found)


def cores_in_use(pids: Iterable[int]) -> set[int]:
    """The numbers of the cores that threads of these processes run on, or wait for, just now."""
    found = set()
    for pid in pids:
        for tid in procfs.living_threads(pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                stat = read_stat(pid, tid)
                # R also means waiting for its core: it will run there.
                if stat.state == "R":
                    found.add(stat.cpu)
    return found


def find_ended_tasks(tasks: Iterable[tuple[int, int]], init: int | None = None) -> tuple[int, ...]:
    """Find which of these (PID, thread id) do not live, in our pid namespace or that of the process `init`.

    They may be there still, as zombies.
    """
    # Use the init's own /proc, which shows its namespace: in ours, the processes have other numbers.
    proc = Path("/proc") if init is None else Path(f"/proc/{init}/root/proc")
    return tuple(tid for pid, tid in tasks if not _lives(pid, tid, proc))


def _lives(pid: int, tid: int, proc: Path) -> bool:
    try:
        return read_stat(pid, tid, proc=proc).state not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def outer_pids(pids: Iterable[int], init: int | None = None) -> dict[int, int]:
    """PID in our pid namespace, or in that of the process `init` -> the PID that we see.

    Processes that do not exist are left out.
    """
    if init is None:
        return {pid: pid for pid in pids}
    wanted, inside = frozenset(pids), namespace(init, "pid")
    found = {}
    for pid in procfs.pids():
        with suppress(OSError):
            # The last number is the PID in the innermost namespace, which is this one.
            if namespace(pid, "pid") == inside and (process := read_process(pid)) and process.ns_pids[-1] in wanted:
                found[process.ns_pids[-1]] = pid
    return found


def wait_until_gone(
    pids: Iterable[int], timeout: float, starts: Mapping[int, int] = MappingProxyType({})
) -> tuple[int, ...]:
    """Wait until none of these PIDs is in /proc any more; those that still are after `timeout` seconds.

    One that was given to another process, started at another time than `starts` says, is gone, too.
    """
    # A process that has ended keeps its PID until its parent has reaped it.
    deadline = time.monotonic() + timeout
    left = tuple(pids)
    while True:
        left = tuple(pid for pid in left if (now := start_time(pid)) is not None and starts.get(pid, now) == now)
        if not left or time.monotonic() > deadline:
            return left
        # The system's init may take a second or two to reap it, and no event tells of that.
        select.select([], [], [], 0.01)


def _parents() -> Iterator[tuple[int, int]]:
    for pid in procfs.pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            yield pid, read_stat(pid).ppid
