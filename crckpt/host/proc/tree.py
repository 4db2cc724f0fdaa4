"""Processes, their trees and commands, and who uses a number as PID, thread id, process group or session."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.proc import procfs
from crckpt.host.proc.process import Identity, Process, identify, read_process, state_name
from crckpt.host.proc.status import read_comm, read_parent, read_stat, read_status

# How firmly each holds a number: a PID that also names a group is reported as PID.
_ROLES: Final = ("session", "group", "thread", "PID")
_MOST_ARGUMENTS: Final = 128 << 10


class Tree(Struct, frozen=True):
    """The processes below and with `root` in the order of CRIU: root first, each child with its own, oldest first."""

    root: Process
    processes: tuple[Process, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        """PIDs as we see them."""
        return tuple(process.pid for process in self.processes)


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
    for pid, ppid in read_parents():
        children.setdefault(ppid, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        parent = waiting.pop()
        found.append(parent)
        below = [read for pid in children.get(parent.pid, ()) if (read := read_process(pid)) is not None]
        # Its children are known by its PID: that must still be its own after they were read.
        if below and parent.identity.keeps_pid:
            own = (child for child in below if child.ppid == parent.pid)
            waiting += sorted(own, key=lambda child: (child.start, child.pid), reverse=True)
    return Tree(root, tuple(found))


def children(pid: int) -> tuple[int, ...]:
    """PIDs of the living children of a process."""
    return tuple(child for child, parent in read_parents() if parent == pid)


def descendants(pid: int) -> tuple[int, ...]:
    """PIDs of a process and all its living descendants; none if it has ended. Waits for no process (`ask_of`)."""
    parents = dict(read_parents())
    return tuple(find_below((pid,), parents.items())) if pid in parents else ()


def ancestors(pid: int) -> tuple[int, ...]:
    """PIDs of the parent, its parent, and so on up to 1."""
    found: list[int] = []
    with suppress(OSError):
        while pid := read_parent(pid):
            found.append(pid)
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
    ended = []
    for pid, tid in tasks:
        try:
            has_ended = read_stat(pid, tid, proc=proc).state in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            has_ended = True
        ended += [tid] if has_ended else []
    return tuple(ended)


def outer_pids(pids: Iterable[int], init: int | None = None) -> dict[int, int]:
    """PID in our pid namespace, or in that of the process `init` -> the PID that we see.

    Processes that do not exist are left out.
    """
    if init is None:
        return {pid: pid for pid in pids}
    wanted = frozenset(pids)
    depth = len(_numbers(init))
    found = {}
    for pid in find_below((init, os.getpid()), read_parents()):
        with suppress(OSError):
            # The last number is the PID in the innermost namespace. That is this one if it is as deep, and the process
            # descends from the init, or from us: CRIU enters the namespace.
            numbers = _numbers(pid)
            if len(numbers) == depth and numbers[-1] in wanted:
                found[numbers[-1]] = pid
    return found


def wait_until_gone(wanted: Iterable[int | Identity], timeout: float) -> tuple[int, ...]:
    """Wait until none of these processes is in /proc any more; PIDs of those that still are after `timeout` seconds.

    A process named by its PID is the one that has it now.
    """
    # A process that has ended keeps its PID until its parent has reaped it.
    deadline = time.monotonic() + timeout
    found = (each if isinstance(each, Identity) else identify(each) for each in wanted)
    left = tuple(each for each in found if each is not None)
    while True:
        left = tuple(each for each in left if each.keeps_pid)
        if not left or time.monotonic() > deadline:
            return tuple(each.pid for each in left)
        # The system's init may take a second or two to reap it, and no event tells of that.
        select.select([], [], [], 0.01)


def _numbers(pid: int) -> tuple[int, ...]:
    """The PIDs of a process, from our PID namespace inwards."""
    return tuple(map(int, read_status(pid)["NSpid"].split()))


def find_below(ancestors: Iterable[int], parents: Iterable[tuple[int, int]]) -> frozenset[int]:
    """Find these processes and all that descend from them."""
    children: dict[int, list[int]] = {}
    for pid, ppid in parents:
        children.setdefault(ppid, []).append(pid)
    waiting = list(ancestors)
    found = set(waiting)
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(below)
        waiting += below
    return frozenset(found)


def read_parents() -> Iterator[tuple[int, int]]:
    """PID and PID of the parent of each process."""
    for pid in procfs.pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            yield pid, read_parent(pid)


class IdUser(Struct, frozen=True):
    """A process that uses `number` in this `role`."""

    number: int
    role: str
    pid: int
    ppid: int
    comm: str
    state: str


def find_id_users(numbers: Iterable[int]) -> tuple[IdUser, ...]:
    """Find which of these numbers cannot be given to a new task, and who uses each."""
    # The kernel keeps a number while anything is a member of the process group or session of that name. Read the files
    # of every process only if a number is in use, to name its user: reading them always took 19 of the 20 ms of a
    # restore's preflight.
    members = set()
    for pid in procfs.pids():
        with suppress(ProcessLookupError):
            members |= {os.getpgid(pid), os.getsid(pid)}
    # Thread ids are not listed in /proc, but can be looked up there.
    wanted = {number for number in numbers if number in members or Path(f"/proc/{number}").exists()}
    found: dict[int, IdUser] = {}
    for pid in procfs.pids() if wanted else ():
        with suppress(OSError):
            uses = (
                (os.getsid(pid), "session"),
                (os.getpgid(pid), "group"),
                *((tid, "thread") for tid in procfs.threads(pid)),
                (pid, "PID"),
            )
            for number, role in uses:
                if number in wanted and (number not in found or _ROLES.index(role) >= _ROLES.index(found[number].role)):
                    status = read_status(pid)
                    state = state_name(status["State"][:1])
                    found[number] = IdUser(number, role, pid, int(status["PPid"]), read_comm(pid), state)
    return tuple(found[number] for number in sorted(found))


def command_line(pid: int) -> tuple[str, ...]:
    """The arguments a process was started with (it may have changed them); empty if it has ended."""
    # At most the first 128 KiB: a program can declare all of its memory to be its arguments (PR_SET_MM).
    with suppress(OSError):
        # Programs that rename themselves leave empty words behind their new name.
        text = procfs.head(f"/proc/{pid}/cmdline", _MOST_ARGUMENTS).rstrip(b"\0")
        return tuple(os.fsdecode(word) for word in text.split(b"\0")) if text else ()
    return ()


def read_commands(tree: Tree) -> Iterator[tuple[Process, tuple[str, ...], str]]:
    """Each process of a tree with its command line and its current directory, except those that have ended."""
    for process in tree.processes:
        found = process, command_line(process.pid), working_directory(process.pid)
        # Check this last: then the PID belonged to this process while both files were read.
        if process.identity.keeps_pid:
            yield found


def title(pid: int) -> str:
    """Return the name that people use for a process: its comm, or `criu` where CRIU was started through a loader; `?`
    if it has ended.
    """
    # Started as `ld-linux-x86-64.so.2 --library-path DIRECTORIES ... criu`, it has the loader's name as its comm.
    if any(Path(word).name == "criu" for word in command_line(pid)[:6]):
        return "criu"
    with suppress(OSError):
        return read_comm(pid)
    return "?"


def working_directory(pid: int) -> str:
    """Its current directory; empty if it has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/cwd")
    return ""
