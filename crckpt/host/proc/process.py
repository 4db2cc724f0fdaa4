"""A process, and its identity: what tells it from every other one, also from a later one with its PID."""

from __future__ import annotations

import re
import signal
from typing import Final

from msgspec import Struct

from crckpt.host.proc import procfs
from crckpt.host.proc.status import ask_of, namespace, read_namespaces, read_stat, read_status, start_time
from crckpt.model import Count, Pid

_SIGTRAP: Final = 1 << signal.SIGTRAP - 1  # signals count from 1 in the masks of /proc/PID/status
_NAME: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,20})")
_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "dead",
}


class Identity(Struct, frozen=True, omit_defaults=True):
    """A process, unique for ever: `start` is its start time in clock ticks after the boot `boot_id`.

    `pid_namespace` is the inode of the PID namespace of `pid`; 0 if that is ours, or was not recorded.
    """

    boot_id: str
    pid: Pid
    start: Count
    pid_namespace: Count = 0

    @property
    def name(self) -> str:
        """Its name among the processes of this boot, for files."""
        return f"{self.pid}-{self.start}"

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is of another boot, perhaps of another host, where it may run."""
        return self.boot_id != procfs.boot_id()

    @property
    def keeps_pid(self) -> bool:
        """Whether the PID is still its own, as it runs or is a zombie: what was read by the PID before is of it."""
        # Who gets the PID later starts in a later clock tick: PIDs are not used again within one.
        return self._is_visible and start_time(self.pid) == self.start

    def find(self) -> Process | None:
        """Find it, running, stopped or frozen; None if it has ended or cannot be seen from here."""
        process = read_process(self.pid) if self._is_visible else None
        return process if process is not None and process.start == self.start and not process.has_ended else None

    def has_ended(self) -> bool:
        """Return whether it has surely ended: nobody can say that of one in another PID namespace of this boot."""
        return self.is_elsewhere or (self._is_visible and self.find() is None)

    @property
    def _is_visible(self) -> bool:
        return not self.is_elsewhere and self.pid_namespace in (0, namespace("self", "pid"))


class Process(Struct, frozen=True):
    """A live process. `start` is its start time in clock ticks after boot.

    `ns_pids` and `ns_sids` are its PIDs and its sessions from our pid namespace inwards, a session whose leader is
    outside the namespace as 0; `namespaces` maps kind to inode. `uids` and `gids` are real,
    effective, saved and file system ids. `trapped` is whether SIGTRAP waits for it, as it does at a breakpoint.
    `seccomp` is 0, 1 (strict) or 2 (filter), of its first thread. Its parent gets `exit_signal` when it ends.
    `terminal` is the device of its controlling terminal, 0 if it has none.
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
    terminal: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether it runs no code any more, although its parent has not reaped it."""
        return self.state in ("zombie", "dead")

    @property
    def identity(self) -> Identity:
        """Its identity, which no other process has, also no later one."""
        return Identity(procfs.boot_id(), self.pid, self.start)


def state_name(letter: str) -> str:
    """The name of a state in stat and status."""
    return _STATES.get(letter, letter)


def read_process(pid: int) -> Process | None:
    """The process with that PID, or None if there is none (a thread's id is no PID, though /proc answers to it).

    Raises TimeoutError if the kernel keeps back what it knows (`ask_of`).
    """
    try:
        stat, namespaces = ask_of(pid, lambda: (read_stat(pid), read_namespaces(pid)))
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
        state=state_name(stat.state),
        start=stat.start,
        threads=threads,
        ns_pids=tuple(int(part) for part in status.get("NSpid", str(pid)).split()),
        tracer=int(status.get("TracerPid", "0")),
        uids=tuple(int(part) for part in status["Uid"].split()),
        gids=tuple(int(part) for part in status["Gid"].split()),
        namespaces=namespaces,
        is_kernel_thread=stat.is_kernel_thread,
        trapped=any(int(status.get(mask, "0"), 16) & _SIGTRAP for mask in ("SigPnd", "ShdPnd")),
        seccomp=int(status.get("Seccomp", "0")),
        exit_signal=stat.exit_signal,
        terminal=stat.terminal,
        ns_sids=tuple(int(part) for part in status.get("NSsid", str(stat.sid)).split()),
    )


def identify(pid: int) -> Identity | None:
    """Identify the process with that PID; None if there is none."""
    start = start_time(pid)
    return None if start is None else Identity(procfs.boot_id(), pid, start)


def parse_identity(name: str) -> Identity | None:
    """Parse the name of a process of this boot; None if it is none."""
    found = _NAME.fullmatch(name)
    return Identity(procfs.boot_id(), int(found[1]), int(found[2])) if found else None
