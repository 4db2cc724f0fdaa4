"""The live tree, read from /proc. Nothing is stopped or changed by looking."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from crckpt.host.proc import procfs
from crckpt.host.proc.maps import mapped_files

_PROC = Path("/proc")
_MOUNT = re.compile(r"^mnt_id:\s*(\d+)", re.MULTILINE)
_MOST_ARGUMENTS = 128 << 10
_SIGTRAP = 1 << signal.SIGTRAP - 1
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "dead",
}


# The lines of smaps_rollup that count what CRIU writes.
_UNFILED = ("Anonymous:", "Pss_Shmem:", "Swap:", "Private_Hugetlb:")
_SHARED_HUGE = "Shared_Hugetlb:"

# How firmly each holds a number: a PID that also names a group is told as PID.
_ROLES = ("session", "group", "thread", "PID")


class Process(Struct, frozen=True):
    """A live process. `start` is its start time in clock ticks after boot: with the PID it names it for ever.

    `ns_pids` are its PIDs from our pid namespace inwards; `namespaces` maps kind to inode. `uids` and `gids` are real,
    effective, saved and file system ids. `trapped` is whether SIGTRAP waits for it, as it does at a breakpoint.
    `seccomp` is 0, 1 (strict) or 2 (filter), of its first thread.
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


class Descriptor(Struct, frozen=True):
    """An open descriptor of a live process: what /proc/PID/fd and fdinfo say. `size`, `pos` and `allocated` are bytes.

    `allocated` is what the file takes on its disk. `mode`, `size` and `links` are 0 where the file system does not
    answer (FUSE of another user, a dead network share). `device` is the number of the device that it is, if any.
    `identity` are the number of its file system and its inode; zeros if it was exchanged for another meanwhile.
    `is_namespace` is whether it names one, whatever its path.
    """

    pid: int
    fd: int
    target: str
    mode: int
    size: int
    links: int
    flags: int
    pos: int
    info: str
    device: int = 0
    allocated: int = 0
    is_namespace: bool = False
    identity: tuple[int, int] = (0, 0)

    @property
    def mount(self) -> int:
        """The id of the mount that it was opened on, as in mountinfo."""
        found = _MOUNT.search(self.info)
        return int(found[1]) if found else 0

    @property
    def most(self) -> int:
        """Bytes of content, or on the disk: a file system takes more than it needs of one that grows (XFS)."""
        return max(self.size, self.allocated)

    @property
    def is_append_only(self) -> bool:
        """Whether it can only write at the end of a file."""
        return self.flags & os.O_ACCMODE == os.O_WRONLY and bool(self.flags & os.O_APPEND)

    @property
    def socket_inode(self) -> int:
        """Of a socket its inode, else 0."""
        inode = self.target.removeprefix("socket:[").removesuffix("]")
        return int(inode) if inode.isdecimal() else 0


class Owner(Struct, frozen=True):
    """Who uses a number as PID, thread id, process group or session."""

    number: int
    role: str
    pid: int
    ppid: int
    comm: str
    state: str


class Tree(Struct, frozen=True):
    """The processes below and with `root`, root first, parents before children."""

    root: Process
    processes: tuple[Process, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        """PIDs as we see them."""
        return tuple(process.pid for process in self.processes)


def read_process(pid: int) -> Process | None:
    """The process with that PID, or None if there is none (a thread's id is no PID, though /proc answers to it)."""
    directory = f"/proc/{pid}"
    try:
        stat = procfs.text(f"{directory}/stat")
        status = dict(line.split(":\t", 1) for line in procfs.lines(f"{directory}/status") if ":\t" in line)
        threads = tuple(sorted(int(name) for name in os.listdir(f"{directory}/task")))
    except (FileNotFoundError, ProcessLookupError):
        return None
    if int(status["Tgid"]) != pid:
        return None
    fields = procfs.behind_the_name(stat)
    return Process(
        pid=pid,
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        comm=stat[stat.index("(") + 1 : stat.rindex(")")],
        state=_STATES.get(fields[0], fields[0]),
        start=int(fields[19]),
        threads=threads,
        ns_pids=tuple(int(part) for part in status.get("NSpid", str(pid)).split()),
        tracer=int(status.get("TracerPid", "0")),
        uids=tuple(int(part) for part in status["Uid"].split()),
        gids=tuple(int(part) for part in status["Gid"].split()),
        namespaces=_namespaces(directory),
        is_kernel_thread=bool(int(fields[6]) & 0x00200000),  # PF_KTHREAD, linux/sched.h
        trapped=any(int(status.get(mask, "0"), 16) & _SIGTRAP for mask in ("SigPnd", "ShdPnd")),
        seccomp=int(status.get("Seccomp", "0")),
    )


def read_tree(root: Process) -> Tree:
    """`root` with all its living descendants. Processes that end meanwhile are left out.

    So is another process that has got the PID of one of them, with its children.
    """
    children: dict[int, list[int]] = {}
    for pid, ppid in _parents():
        children.setdefault(ppid, []).append(pid)
    found, waiting = [root], [root]
    while waiting:
        parent = waiting.pop(0)
        below = [read for pid in children.get(parent.pid, ()) if (read := read_process(pid)) is not None]
        # Its children are known by its PID: that must still be its own after they were read.
        if below and is_current(parent):
            mine = [child for child in below if child.ppid == parent.pid]
            found += mine
            waiting += mine
    return Tree(root, tuple(found))


def is_current(process: Process) -> bool:
    """Whether the PID still belongs to this process: then what was read by that PID since `process` is of it.

    The start time tells. A process that gets the PID later starts later, in a clock tick of its own: PIDs are not used
    again within one.
    """
    return start_of(process.pid) == process.start


def owners(numbers: Iterable[int]) -> tuple[Owner, ...]:
    """Which of these numbers cannot be given to a new task, and who uses each.

    The kernel keeps a number while anything is a member of the process group or session of that name.
    """
    wanted = _in_use(frozenset(numbers))
    found: dict[int, Owner] = {}
    for pid in _pids() if wanted else ():
        process = read_process(pid)
        if process is None:
            continue
        uses = (
            (process.sid, "session"),
            (process.pgid, "group"),
            *((tid, "thread") for tid in process.threads),
            (pid, "PID"),
        )
        for number, role in uses:
            if number in wanted and (number not in found or _ROLES.index(role) >= _ROLES.index(found[number].role)):
                found[number] = Owner(number, role, pid, process.ppid, process.comm, process.state)
    return tuple(found[number] for number in sorted(found))


def tracers(pid: int) -> tuple[tuple[int, int], ...]:
    """(thread id, PID of its tracer) of the threads of a process that are traced, but for its first."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(_PROC / str(pid) / "task"):
            with suppress(FileNotFoundError, ProcessLookupError):
                status = procfs.text(f"/proc/{pid}/task/{name}/status")
                tracer = int(status.partition("\nTracerPid:\t")[2].partition("\n")[0])
                if tracer and int(name) != pid:
                    found.append((int(name), tracer))
    return tuple(found)


def cores_in_use(pids: Iterable[int]) -> set[int]:
    """The numbers of the cores that threads of these processes run on, or wait for, just now."""
    found = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir(f"/proc/{pid}/task"):
                with suppress(FileNotFoundError, ProcessLookupError):
                    fields = procfs.behind_the_name(procfs.text(f"/proc/{pid}/task/{name}/stat"))
                    if fields[0] == "R":
                        found.add(int(fields[36]))
    return found


def children(pid: int) -> tuple[int, ...]:
    """PIDs of the living children of a process."""
    return tuple(child for child, parent in _parents() if parent == pid)


def ended_tasks(tasks: Iterable[tuple[int, int]], init: int | None = None) -> tuple[int, ...]:
    """Which of these (PID, thread id) do not live, in our pid namespace or that of the process `init`.

    They may be there still, as zombies.
    """
    base = _PROC if init is None else _PROC / str(init) / "root/proc"
    return tuple(tid for pid, tid in tasks if not _lives(base / str(pid) / "task" / str(tid)))


def _lives(task: Path) -> bool:
    try:
        stat = (task / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def seen_from_here(pids: Iterable[int], init: int | None = None) -> dict[int, int]:
    """What we call processes: PID in our pid namespace, or in that of the process `init`, -> the PID that we see.

    Those that there are not are left out.
    """
    if init is None:
        return {pid: pid for pid in pids}
    wanted, inside = frozenset(pids), namespace(init, "pid")
    found = {}
    for pid in _pids():
        with suppress(OSError):
            if namespace(pid, "pid") == inside and (process := read_process(pid)) and process.ns_pids[-1] in wanted:
                found[process.ns_pids[-1]] = pid
    return found


def ancestors(pid: int) -> tuple[int, ...]:
    """PIDs of the parent, its parent, and so on up to 1."""
    found: list[int] = []
    process = read_process(pid)
    while process is not None and process.ppid > 0:
        found.append(process.ppid)
        process = read_process(process.ppid)
    return tuple(found)


def descriptors(pid: int) -> tuple[Descriptor, ...]:
    """Every open descriptor of a process; none if it has ended or ends meanwhile."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
            with suppress(FileNotFoundError, ProcessLookupError):
                found.append(_descriptor(pid, int(name)))
    return tuple(found)


def mapped_deleted_files(pid: int) -> tuple[tuple[str, int, int], ...]:
    """(path, bytes, links) of mapped files whose name is gone; bytes as `Descriptor.most` has them."""
    found = {}
    for (*_, path), link in mapped_files(pid).items():
        with suppress(OSError):
            if path.endswith(" (deleted)"):
                status = os.stat(link)
                found[status.st_dev, status.st_ino] = (
                    os.readlink(link),
                    max(status.st_size, _allocated(status)),
                    status.st_nlink,
                )
    return tuple(found.values())


def memory(*pids: int) -> int:
    """Bytes of these processes' memory that are in no file: their own, what they share, and what is swapped out.

    Of huge pages that are shared the kernel does not say by how many: they count once, as if all shared the same ones.
    Nothing of processes that have ended. Source: proc_pid_smaps(5).
    """
    own = shared = 0
    for pid in pids:
        with suppress(OSError):
            rows = (line.split() for line in procfs.lines(f"/proc/{pid}/smaps_rollup")[1:])
            sizes = {name: int(size) << 10 for name, size, *_ in rows}
            own += sum(sizes.get(name, 0) for name in _UNFILED)
            shared = max(shared, sizes.get(_SHARED_HUGE, 0))
    return own + shared


def shared_memory(pid: int) -> int:
    """Bytes of shared memory that is in no file, and that a process has touched. 0 if it has ended. Source: proc(5)."""
    return _told_in_status(pid, "RssShmem")


def huge_pages(pid: int) -> int:
    """Bytes of a process's huge pages that were set aside (hugetlb). 0 if it has ended. Source: proc_pid_status(5)."""
    return _told_in_status(pid, "HugetlbPages")


def _told_in_status(pid: int, name: str) -> int:
    with suppress(OSError):
        told = dict(line.split(":", 1) for line in procfs.lines(f"/proc/{pid}/status") if ":" in line)
        return int(told.get(name, "0").split()[0]) << 10
    return 0


def command_line(pid: int) -> tuple[str, ...]:
    """The arguments a process was started with (it may have changed them); empty if it has ended.

    Of more than 128 KiB only the begin: a program can declare all of its memory to be its arguments (PR_SET_MM).
    """
    with suppress(OSError):
        # Programs that rename themselves leave empty words behind their new name.
        text = procfs.begin(f"/proc/{pid}/cmdline", _MOST_ARGUMENTS).rstrip(b"\0")
        return tuple(os.fsdecode(word) for word in text.split(b"\0")) if text else ()
    return ()


def read_commands(tree: Tree) -> Iterator[tuple[Process, tuple[str, ...], str]]:
    """Each process of a tree with its command line and its current directory, except those that have ended."""
    for process in tree.processes:
        found = process, command_line(process.pid), working_directory(process.pid)
        if is_current(process):
            yield found


def title(pid: int) -> str:
    """What people call a process: its comm, or `criu` where CRIU was started through a loader; `?` if it has ended."""
    if any(Path(word).name == "criu" for word in command_line(pid)[:6]):
        return "criu"
    process = read_process(pid)
    return process.comm if process else "?"


def working_directory(pid: int) -> str:
    """Its current directory; empty if it has ended."""
    with suppress(OSError):
        return os.readlink(_PROC / str(pid) / "cwd")
    return ""


def namespace(pid: int | str, kind: str) -> int:
    """The inode that names a process's namespace of that kind."""
    return (_PROC / str(pid) / "ns" / kind).stat().st_ino


def effective_capabilities() -> frozenset[int]:
    """Our own effective capabilities, as numbers (linux/capability.h)."""
    for line in procfs.lines("/proc/self/status"):
        if line.startswith("CapEff:"):
            mask = int(line.split()[1], 16)
            return frozenset(bit for bit in range(64) if mask >> bit & 1)
    return frozenset()


def boot_id() -> str:
    """What names this boot of this kernel."""
    return procfs.text("/proc/sys/kernel/random/boot_id").strip()


def start_of(pid: int) -> int | None:
    """When the process with that PID was started, in clock ticks since boot; None if there is none."""
    try:
        return int(procfs.behind_the_name(procfs.text(f"/proc/{pid}/stat"))[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def wait_until_gone(
    pids: Iterable[int], timeout: float, starts: Mapping[int, int] = MappingProxyType({})
) -> tuple[int, ...]:
    """Wait until none of these PIDs is in /proc any more; those that still are after `timeout` seconds.

    One that was given to another process, started at another time than `starts` says, is gone, too.
    A process that has ended keeps its PID until its parent has reaped it, which the system's init may do a second or
    two later; no event tells of it, so this looks again every 10 ms.
    """
    deadline = time.monotonic() + timeout
    left = tuple(pids)
    while True:
        left = tuple(pid for pid in left if (now := start_of(pid)) is not None and starts.get(pid, now) == now)
        if not left or time.monotonic() > deadline:
            return left
        select.select([], [], [], 0.01)


def tid_inside(pid: int, tid: int) -> int:
    """The number of a thread in its own PID namespace. Raises OSError."""
    status = procfs.text(f"/proc/{pid}/task/{tid}/status")
    return int(status.partition("\nNSpid:")[2].partition("\n")[0].split()[-1])


def _in_use(numbers: frozenset[int]) -> frozenset[int]:
    """Those that are taken, by whomever: no file is read for it."""
    members = set()
    for pid in _pids():
        with suppress(ProcessLookupError):
            members |= {os.getpgid(pid), os.getsid(pid)}
    # Thread ids are not listed in /proc, but can be looked up there.
    return frozenset(number for number in numbers if number in members or (_PROC / str(number)).exists())


def _pids() -> Iterator[int]:
    yield from (int(name) for name in os.listdir(_PROC) if name.isdigit())


def _parents() -> Iterator[tuple[int, int]]:
    for pid in _pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            yield pid, int(procfs.behind_the_name(procfs.text(f"/proc/{pid}/stat"))[1])


def _namespaces(directory: str) -> tuple[tuple[str, int], ...]:
    found = []
    with suppress(OSError):
        for kind in ("pid", "mnt", "net", "ipc", "uts", "user", "cgroup", "time", "time_for_children"):
            with suppress(FileNotFoundError):
                found.append((kind, os.stat(f"{directory}/ns/{kind}").st_ino))
    return tuple(found)


def _descriptor(pid: int, fd: int) -> Descriptor:
    link = f"/proc/{pid}/fd/{fd}"
    target = os.readlink(link)
    status = _status(link)
    info = procfs.text(f"/proc/{pid}/fdinfo/{fd}")
    told = dict(line.split(":", 1) for line in info.split("\n") if ":" in line)
    return Descriptor(
        pid=pid,
        fd=fd,
        target=target,
        mode=status.st_mode if status else 0,
        size=status.st_size if status else 0,
        links=status.st_nlink if status else 0,
        flags=int(told.get("flags", "0"), 8),
        pos=int(told.get("pos", "0")),
        info=info,
        device=status.st_rdev if status else 0,
        allocated=_allocated(status) if status else 0,
        is_namespace=status is not None and status.st_dev == _namespaces_device(),
        identity=_identity(status, told) if status else (0, 0),
    )


def _identity(status: os.stat_result, told: Mapping[str, str]) -> tuple[int, int]:
    return (status.st_dev, status.st_ino) if int(told.get("ino", status.st_ino)) == status.st_ino else (0, 0)


@cache
def _namespaces_device() -> int:
    """The device of the kernel's file system of namespaces (nsfs), which `ip netns` mounts on names of its own."""
    return os.stat("/proc/self/ns/mnt").st_dev


def _allocated(status: os.stat_result) -> int:
    return status.st_blocks * 512


def _status(link: str) -> os.stat_result | None:
    try:
        return os.stat(link)
    except (FileNotFoundError, ProcessLookupError):
        raise
    except OSError:
        return None
