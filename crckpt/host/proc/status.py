"""What the kernel says of a task: /proc/PID/stat, status and ns, and those of threads.

Source: proc_pid_stat(5), proc_pid_status(5), namespaces(7)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

from crckpt.host.budget import OTHER_USERS_S, OWN_USERS_S, Budget, finish_within
from crckpt.host.proc import procfs

_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD, linux/sched.h
_ANSWERED_WITHIN_S: Final = 5.0

Answer = TypeVar("Answer")

_KINDS = ("pid", "mnt", "net", "ipc", "uts", "user", "cgroup", "time", "time_for_children")


class Stat(Struct, frozen=True):
    """What the stat of a task says.

    - `state`: its letter
    - `terminal`: the device of its controlling terminal, 0 if it has none
    - `foreground`: the process group in the foreground of that terminal, -1 if there is none
    - `flags`: the kernel's (linux/sched.h: PF_...)
    - `major_faults`: the pages that it had to read from disks
    - `cpu_ticks`: CPU time in user and kernel mode; `start`: after the boot; both in clock ticks
    - `layout`: the start and end of its code and the start of its stack; zeros if we may not trace it
    - `exit_signal`: what its parent gets when it ends
    - `cpu`: the number of the core that it ran on last
    - `wait_status`: that of a zombie, as wait(2) has it
    """

    comm: str
    state: str
    ppid: int
    pgid: int
    sid: int
    terminal: int
    foreground: int
    flags: int
    major_faults: int
    cpu_ticks: int
    start: int
    layout: tuple[int, int, int]
    exit_signal: int
    cpu: int
    wait_status: int

    @property
    def is_kernel_thread(self) -> bool:
        return bool(self.flags & _KERNEL_THREAD)


def read_stat(pid: int, tid: int | None = None, *, proc: str | Path = "/proc") -> Stat:
    """Read the stat of a process or of one thread. Raises OSError. `proc` is another PID namespace's /proc."""
    task = f"{proc}/{pid}" if tid is None else f"{proc}/{pid}/task/{tid}"
    return parse_stat(procfs.text(f"{task}/stat"))


def parse_stat(text: str) -> Stat:
    """Take apart what such a file says."""
    # The name may hold anything, but ends at the last parenthesis.
    name, _, rest = text.rpartition(")")
    state, *words = rest.split()
    # By their numbers in proc_pid_stat(5).
    number = dict(enumerate(map(int, words), 4))
    return Stat(
        name.partition("(")[2],
        state,
        *(number[4], number[5], number[6]),
        # The kernel writes 12 bits of the major number between the halves of the minor one (linux/kdev_t.h).
        os.makedev(number[7] >> 8 & 0xFFF, number[7] & 0xFF | number[7] >> 12 & 0xFFF00),
        *(number[8], number[9], number[12], number[14] + number[15], number[22]),
        (number[26], number[27], number[28]),
        *(number[38], number[39], number[52]),
    )


def start_time(pid: int) -> int | None:
    """Read the start time of the process with that PID, in clock ticks after boot; None if there is none."""
    try:
        return ask_of(pid, lambda: read_stat(pid)).start
    except (FileNotFoundError, ProcessLookupError):
        return None


def ask_of(pid: int, question: Callable[[], Answer]) -> Answer:
    """Ask the kernel what it tells of process `pid` only to who may trace it: its stat, links, maps and more.

    Raises what `question` raises, and TimeoutError if the kernel keeps the answer back (`finish_within`).
    """
    # Processes of root and our own are trusted: a thread takes longer than the answer.
    if real_user(pid) in (0, os.getuid(), None):
        return question()
    try:
        return finish_within(_ANSWERED_WITHIN_S, question)
    except TimeoutError:
        why = "the kernel does not answer: the process has been executing a program for seconds"
        raise TimeoutError(errno.ETIMEDOUT, why, f"/proc/{pid}") from None


def read_parent(pid: int) -> int:
    """PID of the parent of a process of any user. Raises OSError."""
    # Not `stat`: the kernel may keep that back (`ask_of`).
    return int(read_status(pid)["PPid"])


def read_comm(pid: int) -> str:
    """The name of a process of any user. Raises OSError."""
    # Not `status`, which escapes it.
    return procfs.text(f"/proc/{pid}/comm").removesuffix("\n")


def read_status(pid: int | str, tid: int | None = None) -> dict[str, str]:
    """Read the status of a process or of one thread: name of a field -> its text. Raises OSError."""
    task = f"/proc/{pid}" if tid is None else f"/proc/{pid}/task/{tid}"
    return procfs.parse_fields(procfs.text(f"{task}/status"))


def read_bytes(pid: int, name: str) -> int:
    """A field that counts kB, in bytes. 0 if the process has ended, or the kernel has no such field."""
    with suppress(OSError):
        return int(read_status(pid).get(name, "0").split()[0]) << 10
    return 0


def real_user(pid: int) -> int | None:
    """The real user of a process; None if it has ended."""
    # Not the owner of /proc/PID: a process can make that root (PR_SET_DUMPABLE).
    with suppress(OSError):
        return int(read_status(pid)["Uid"].split()[0])
    return None


def look_at_all(near: Container[int], look: Callable[[int, Budget], object]) -> None:
    """Let `look` examine all processes: those of the users `near` for some seconds, then those of others for a second.

    `look` gets a PID and what is left to it, and keeps what it finds. It may be left behind in the kernel, which may
    keep an answer back for ever (`finish_within`): use a copy of what it has kept.
    """
    processes = [(real_user(pid) in near, pid) for pid in sorted(procfs.pids())]
    for is_near, seconds in ((True, OWN_USERS_S), (False, OTHER_USERS_S)):
        pids = [pid for of_near, pid in processes if of_near is is_near]
        with suppress(TimeoutError):
            finish_within(seconds, partial(_look_at_each, pids, look, Budget(seconds)))


def _look_at_each(pids: Iterable[int], look: Callable[[int, Budget], object], budget: Budget) -> None:
    for pid in pids:
        if budget.is_spent():
            return
        look(pid, budget)


def tracer(pid: int, tid: int) -> int:
    """PID of the process that traces a thread; 0 if there is none. Raises OSError."""
    return int(read_status(pid, tid).get("TracerPid", "0"))


def inner_tid(pid: int, tid: int, observer: int | None = None) -> int:
    """The number of a thread in its own PID namespace, or the outer one of the process `observer`. Raises OSError."""
    depth = len(read_status(observer, observer)["NSpid"].split()) if observer else 0
    return int(read_status(pid, tid)["NSpid"].split()[depth - 1])


def effective_capabilities(pid: int | str = "self") -> frozenset[int]:
    """The effective capabilities of a process, as numbers (linux/capability.h)."""
    # Being root is not enough: in a container, root lacks most of them.
    mask = int(read_status(pid).get("CapEff", "0"), 16)
    return frozenset(bit for bit in range(64) if mask >> bit & 1)


def tracers(pid: int) -> Iterator[tuple[int, int]]:
    """(thread id, PID of its tracer) of the threads of a process that are traced, except its first."""
    for tid in procfs.living_threads(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if tid != pid and (traced_by := tracer(pid, tid)):
                yield tid, traced_by


def namespace(pid: int | str, kind: str) -> int:
    """The inode that names a process's namespace of that kind. Raises OSError."""
    return Path(f"/proc/{pid}/ns/{kind}").stat().st_ino


def read_namespaces(pid: int) -> tuple[tuple[str, int], ...]:
    """(kind, inode) of the namespaces of a process; none if we may not see them, or it has ended."""
    try:
        # Called for every process: a `Path` of each link takes longer than the kernel's answer.
        return tuple((kind, os.stat(f"/proc/{pid}/ns/{kind}").st_ino) for kind in _known_kinds())
    except OSError:
        # All or nothing: some of the namespaces of a process that ends meanwhile would be mistaken for others.
        return ()


@cache
def _known_kinds() -> tuple[str, ...]:
    """The kinds that the kernel has: `time` came with Linux 5.6."""
    return tuple(kind for kind in _KINDS if Path(f"/proc/self/ns/{kind}").exists())
