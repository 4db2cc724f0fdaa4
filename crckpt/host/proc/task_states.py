"""Read from the kernel what each task of a tree is and may do, whatever its own code says of that."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from crckpt.host.proc import procfs
from crckpt.host.proc.status import read_status
from crckpt.images.core import CAPABILITIES, Rights


class FileOwner(Struct, frozen=True):
    """Process, thread or process group `pid`, which gets the signals of a descriptor (F_SETOWN_EX: `kind`), as the real
    and the effective user of `uids` may send them.
    """

    kind: int
    pid: int
    uids: tuple[int, int]


class OpenedFile(Struct, frozen=True):
    """What a descriptor leads to: path, inode, and the `flags` of open(2) with which it is open."""

    path: str
    inode: int
    flags: int


class ProcessState(Struct, frozen=True):
    """Threads, process group and session in its own PID namespace (0: outside), umask, and whether its user may trace
    it.

    `files`: what its descriptors lead to, by number. `owners`: who gets the signals of its descriptors. None: not read.
    Of processes with all our rights, which are `is_trusted`, neither is read. `pid` is the one that we see.
    """

    threads: frozenset[int]
    pgid: int
    sid: int
    umask: int
    is_dumpable: bool
    pid: int = 0
    is_trusted: bool = False
    files: dict[int, OpenedFile] | None = None
    owners: dict[int, FileOwner] | None = None


class TaskStates(Struct, frozen=True):
    """The rights of all threads, and the state of all processes, by the ids that they have in their PID namespaces."""

    rights: dict[int, Rights] = {}
    processes: dict[int, ProcessState] = {}


def read_task_states(root: int) -> TaskStates:
    """Read those of `root` and its descendants, without those that have ended. Complete if the tree is frozen."""
    rights: dict[int, Rights] = {}
    processes: dict[int, ProcessState] = {}
    waiting, ours = [root], int(read_status("self")["CapEff"], 16)
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):
            own: dict[int, Rights] = {}
            leader: dict[str, str] = {}
            # Lists of the children of a task that runs may be incomplete (proc_tid_children(5)).
            for tid in procfs.threads(pid):
                status = read_status(pid, tid)
                waiting.extend(procfs.children(pid, tid))
                if "VmSize" not in status:  # it has no memory
                    continue
                own[_number(status)] = Rights(
                    uids=tuple(map(int, status["Uid"].split())),
                    gids=tuple(map(int, status["Gid"].split())),
                    groups=frozenset(map(int, status["Groups"].split())),
                    capabilities=tuple(int(status[name], 16) for name in CAPABILITIES),
                    confined=status["NoNewPrivs"] == "1",
                )
                leader = status if tid == pid else leader
            # First: a process of which not all can be read has no rights either, and is refused.
            state = _state(pid, leader, frozenset(own), ours) if leader else None
            rights.update(own)
            if state is not None:
                processes[_number(leader)] = state
    return TaskStates(rights, processes)


def _number(status: dict[str, str]) -> int:
    return int(status["NSpid"].split()[-1])


def _state(pid: int, status: dict[str, str], threads: frozenset[int], ours: int) -> ProcessState:
    # The kernel gives the files of a process that its user may not trace to root: proc(5), /proc/pid.
    owner = Path(f"/proc/{pid}/status").stat().st_uid
    user = int(status["Uid"].split()[1])
    return ProcessState(
        threads=threads,
        pgid=int(status["NSpgid"].split()[-1]),
        sid=int(status["NSsid"].split()[-1]),
        umask=int(status["Umask"], 8),
        is_dumpable=owner == user,
        pid=pid,
        # A process of root without some capability may not open all files either.
        is_trusted=not user and not ours & ~int(status["CapPrm"], 16),
    )
