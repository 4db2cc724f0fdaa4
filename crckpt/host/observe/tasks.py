"""Find threads that wait in a system call which a freeze interrupts, limits that CRIU would exceed in processes, and
namespaces that belong to another user namespace than crckpt's: their owner controls them.

Source: proc_pid_syscall(5); arch/x86/entry/syscalls/syscall_64.tbl and syscall_32.tbl. crckpt's preload library
restarts such calls: crckpt/tracking/preload/restart.c.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from crckpt.host.opened import opened
from crckpt.host.proc import Descriptor, Process, procfs
from crckpt.host.proc.maps import count_maps
from crckpt.host.proc.status import read_namespaces, read_status
from crckpt.host.syscalls import kcmp
from crckpt.host.syscalls.restarted_calls import RESTARTED_CALLS, SOCKET
from crckpt.model import PAGE_SIZE

RESTARTED: Final = "restart_syscall"
"""The name of a call that a stop signal or a debugger has interrupted before, if it is not known."""

# Calls that the kernel continues by restart_syscall(2), and CRIU ends by EINTR (compel/arch/x86/src/lib/infect.c:417).
# And those that return EINTR themselves after a stop (signal(7)).
_NOT_OF_SOCKETS: Final = [call for call in RESTARTED_CALLS if call.only != SOCKET and call.plain_name != "socketcall"]
_X86_64: Final = {
    **{call.number: call.plain_name for call in _NOT_OF_SOCKETS},
    7: "poll",
    35: "nanosleep",
    202: "futex",
    219: RESTARTED,
    230: "clock_nanosleep",
}
_I386: Final = {
    **{call.compat: call.plain_name for call in _NOT_OF_SOCKETS},
    0: RESTARTED,
    162: "nanosleep",
    168: "poll",
    240: "futex",
    267: "clock_nanosleep",
    407: "clock_nanosleep",
    422: "futex",
}
# CRIU itself restarts all other calls on this machine.
_AARCH64: Final = {
    4: "io_getevents",
    22: "epoll_pwait",
    137: "rt_sigtimedwait",
    192: "semtimedop",
    193: "semop",
    292: "io_pgetevents",
    441: "epoll_pwait2",
}

_NAMESPACES: Final = {"net": "network", "mnt": "mount", "uts": "UTS", "ipc": "IPC", "cgroup": "cgroup"}

# Index of the timeout: the kernel restarts the call if there is none.
_TIMEOUT: Final = {"futex": 3}
# Index of the flags: the kernel restarts the call if bit 0, for an absolute time, is set.
_FLAGS: Final = {"clock_nanosleep": 1}

_NS_GET_USERNS: Final = 0xB701  # linux/nsfs.h

LimitKind = Literal["descriptors", "addresses", "maps", "groups", "line", "signals"]

# CRIU's code in a process opens a socket and files of /proc there, and gets a pipe (criu/pie/parasite.c): seen.
_FREE_DESCRIPTORS: Final = 4
# It gets memory there, with 16 bytes for each page of the process (criu/mem.c, dump_pages_args_size), and splits it.
_FREE_ADDRESSES: Final = 256 << 10
_FREE_MAPS: Final = 8
# PARASITE_MAX_GROUPS of CRIU 4.2 (criu/include/parasite.h).
_MOST_GROUPS: Final = 973
# CRIU reads /proc by lines into a buffer of a page (criu/bfd.c).
_LONGEST_LINE: Final = PAGE_SIZE - 1
_UNLIMITED: Final = 1 << 64
# Real-time signals, in the masks of /proc/PID/status: the kernel refuses to queue one of these above the limit.
_REAL_TIME: Final = -1 << 31


class WaitingThread(Struct, frozen=True):
    """A thread, and the call that it waits in."""

    pid: int
    tid: int
    call: str


def find_waiting_threads(processes: Iterable[Process]) -> Iterator[WaitingThread]:
    """The threads of these processes whose call returns EINTR after a dump by CRIU alone."""
    for pid, tid in ((process.pid, tid) for process in processes for tid in process.threads):
        # The thread has ended, we may not look, or the kernel has no such file (CONFIG_HAVE_ARCH_TRACEHOOK).
        with suppress(OSError):
            call, is_compat = parse_call(procfs.text(f"/proc/{pid}/task/{tid}/syscall"))
            # As the preload library finds the call that restart_syscall(2) continues (restart.c).
            stack = procfs.text(f"/proc/{pid}/task/{tid}/stack") if call == RESTARTED else ""
            if "poll" in stack:
                call = "poll"
            elif stack and not is_compat:
                call = "futex" if "futex" in stack else "nanosleep"
            if call:
                yield WaitingThread(pid, tid, call)


class OwnOfThread(Struct, frozen=True):
    """Something that a thread has for itself, and that CRIU saves only of its process's first thread."""

    pid: int
    tid: int
    what: str


def find_own_of_threads(processes: Iterable[Process]) -> Iterator[OwnOfThread]:
    """Find threads with their own descriptors or namespaces (unshare(2), setns(2)), one of each kind in a process."""
    for process in processes:
        first: dict[str, int] = {}
        ours = dict(read_namespaces(process.pid)) if len(process.threads) > 1 else {}
        for tid in process.threads if ours else ():
            theirs = dict(read_namespaces(tid))
            # A thread that has ended has none of all that.
            if tid == process.pid or not theirs:
                continue
            if kcmp.compare(tid, process.pid, kcmp.FILES):
                first.setdefault("table of descriptors", tid)
            for kind, inode in theirs.items():
                if kind in _NAMESPACES and ours.get(kind, inode) != inode:
                    first.setdefault(f"{_NAMESPACES[kind]} namespace", tid)
        yield from (OwnOfThread(process.pid, tid, what) for what, tid in first.items())


class ForeignNamespace(Struct, frozen=True):
    """A namespace of process `pid` that is another user namespace than ours (kind `user`), or belongs to one."""

    pid: int
    comm: str
    kind: str


def find_foreign_namespaces(processes: Iterable[Process], own: Process) -> Iterator[ForeignNamespace]:
    """List each process in another user namespace, and each namespace that belongs to one, once.

    Takes no time for our own namespaces. Skip a process that ends at the same time.
    """
    ours, belongs = dict(own.namespaces), dict[int, bool]()
    for process in processes:
        theirs = dict(process.namespaces)
        if theirs.get("user") != ours.get("user"):
            # One finding is enough, because the tree is refused. Without any namespace, the process has ended or we
            # may not look.
            if theirs:
                yield ForeignNamespace(process.pid, process.comm, "user")
            continue
        for kind, inode in process.namespaces:
            name = kind.removesuffix("_for_children")
            if inode not in belongs and inode != ours.get(name):
                with suppress(FileNotFoundError, ProcessLookupError):
                    belongs[inode] = _owner(process.pid, kind) == ours["user"]
                    if not belongs[inode]:
                        yield ForeignNamespace(process.pid, process.comm, name)


def _owner(pid: int, kind: str) -> int:
    """Return the inode of the user namespace that owns this namespace of the process; 0 if it is beyond our reach."""
    with opened(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)) as namespace:
        try:
            owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
        except PermissionError as error:
            if error.errno == errno.EPERM:  # the owner is no descendant of our user namespace (ioctl_ns(2))
                return 0
            raise
    with opened(owner):
        return os.fstat(owner).st_ino


def is_executed_from_memory(pid: int) -> bool:
    """Return whether the program of a process is a memory file (memfd_create(2), fexecve(3))."""
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/exe").readlink()).startswith("/memfd:")
    return False


def has_wall_clock_timer(pid: int) -> bool:
    """Return whether a process has a timer of CLOCK_REALTIME (timer_create(2)); False if the kernel does not tell."""
    with suppress(OSError):
        return "ClockID: 0\n" in procfs.text(f"/proc/{pid}/timers")
    return False


def parse_call(said: str, machine: str = os.uname().machine) -> tuple[str, bool]:
    """The name of such a call in a line of /proc/PID/task/TID/syscall, empty if it is another; whether it is 32-bit."""
    number, *words = said.split()
    # "running", or blocked outside of a call: "-1", stack and place.
    if len(words) != 8:
        return "", False
    values = [int(word, 16) for word in words]
    is_compat = values[6] < 1 << 32  # its stack lies below 4 GiB; the file does not say whose number it is
    names = {"x86_64": _I386 if is_compat else _X86_64, "aarch64": _AARCH64}.get(machine, {})
    call = names.get(int(number), "")
    if (call in _TIMEOUT and not values[_TIMEOUT[call]]) or (call in _FLAGS and values[_FLAGS[call]] & 1):
        call = ""
    return call, is_compat


class ReachedLimit(Struct, frozen=True):
    """A process that has `used` up what `limit` allows; it may raise that to `hard`.

    Of a `line` of its mount table only the length is known.
    """

    pid: int
    kind: LimitKind
    used: int
    limit: int
    hard: int = 0


def find_reached_limits(pids: Iterable[int], descriptors: Iterable[Descriptor]) -> Iterator[ReachedLimit]:
    """Find the limits of these processes; none of those that end at the same time."""
    numbers: dict[int, list[int]] = {}
    for found in descriptors:
        numbers.setdefault(found.pid, []).append(found.fd)
    most_maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    for pid in pids:
        with suppress(OSError):
            status = read_status(pid)
            # Columns of fixed width: name, soft, hard (fs/proc/base.c, proc_pid_limits).
            lines = procfs.lines(f"/proc/{pid}/limits")[1:]
            limits = {line[:26].strip(): (_read_limit(line[26:47]), _read_limit(line[47:68])) for line in lines}
            most, hard = limits["Max open files"]
            used = sum(fd < most for fd in numbers.get(pid, ()))
            if most - used < _FREE_DESCRIPTORS:
                yield ReachedLimit(pid, "descriptors", used, most, hard)
            size = int(status.get("VmSize", "0").split()[0]) << 10
            allowed, _ = limits["Max address space"]
            if size and size + size // PAGE_SIZE * 16 + _FREE_ADDRESSES > allowed:
                yield ReachedLimit(pid, "addresses", size, allowed)
            # Only one with so much address space can have so many.
            if size >= (most_maps - _FREE_MAPS) * PAGE_SIZE and (count := count_maps(pid)) + _FREE_MAPS > most_maps:
                yield ReachedLimit(pid, "maps", count, most_maps)
            groups = status.get("Groups", "")
            if len(groups.split()) > _MOST_GROUPS or len(f"Groups:\t{groups} \n") > _LONGEST_LINE:
                yield ReachedLimit(pid, "groups", len(groups.split()), _MOST_GROUPS)
            # The limit was lowered since they were queued: a restore cannot queue them again (rt_sigqueueinfo(2)).
            queued, _, most_queued = status.get("SigQ", "0/0").partition("/")
            if int(queued) > int(most_queued):
                of_threads = [read_status(pid, tid) for tid in procfs.threads(pid)]
                masks = (int(each[mask], 16) for each in of_threads for mask in ("SigPnd", "ShdPnd"))
                if any(mask & _REAL_TIME for mask in masks):
                    yield ReachedLimit(pid, "signals", int(queued), int(most_queued))


def find_long_mount(pid: int) -> Iterator[ReachedLimit]:
    """Find a line of a process's mount table that CRIU cannot read."""
    with suppress(OSError):
        longest = max(map(len, procfs.lines(f"/proc/{pid}/mountinfo")), default=0)
        if longest >= _LONGEST_LINE:
            yield ReachedLimit(pid, "line", longest, _LONGEST_LINE)


def _read_limit(column: str) -> int:
    return _UNLIMITED if column.strip() == "unlimited" else int(column)
