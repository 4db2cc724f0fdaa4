"""Find processes that hold locks on files, or can write to them.

Source: proc_locks(5), proc_pid_fdinfo(5), proc_pid_fd(5), proc_pid_maps(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec import Struct

from crckpt.host.budget import OWN_USERS_S, Budget, finish_within
from crckpt.host.opened import opened
from crckpt.host.proc.fd import list_files, read_info, read_open
from crckpt.host.proc.maps import read_maps
from crckpt.host.proc.mountinfo import read_mounts
from crckpt.host.proc.procfs import parse_fields
from crckpt.host.proc.status import look_at_all
from crckpt.host.proc.tree import ancestors, title
from crckpt.images.processes import FileLock, LockKind

# LEASE and DELEG are left out: they do not prevent locks.
_KINDS: Final[dict[str, LockKind]] = {"FLOCK": "flock", "POSIX": "POSIX", "OFDLCK": "OFD"}
# A line of a held lock. A waiting program's line has an arrow.
_LINE: Final = re.compile(
    r"\d+: (?P<kind>FLOCK|POSIX|OFDLCK) +\S+ +(?P<mode>\S+) +(?P<pid>-?\d+) (?P<file>\S+) (?P<start>\d+) (?P<end>\S+)"
)

# In another PID namespace /proc/locks leaves out locks whose taker has ended. Source: linux/fs/locks.c, locks_show();
# include/linux/proc_ns.h.
_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC

# The kernel answers a read with a page at most, all of it of one moment.
_READ_AT_ONCE: Final = 4096
_MOST_LOOKS: Final = 6
# Time for /proc/locks: for each page of it the kernel starts from the first lock.
_LOOKS_FOR_S: Final = 2.0


class HeldLock(Struct, frozen=True):
    """A lock that process `pid` (`comm`) holds on the bytes from `start` to `end`, inclusive; None is the file's end.

    `pid` is 0 if the process is in a PID namespace that we do not see.
    """

    kind: LockKind
    exclusive: bool
    start: int
    end: int | None
    pid: int
    comm: str


def read_held_locks(paths: Iterable[str]) -> dict[str, tuple[HeldLock, ...]]:
    """Read the locks on these files, by path. Files without locks, and missing ones, are left out.

    Takes a few seconds at most: any user can hold a million locks. CRIU takes the locks of what it restores itself, and
    fails at one that was not found here.
    """
    wanted = tuple(paths)
    if not wanted:
        # Reading /proc/locks is slow: the kernel waits for every CPU.
        return {}
    files = {path: file for path in wanted if (file := _file(path))}
    if not files:
        return {}
    budget = Budget(_LOOKS_FOR_S)
    holders = _Holders({0, os.getuid()} | {owner for path in files if (owner := _owner(path)) is not None})
    looks = [_look(_READ_AT_ONCE, budget)]
    # A lock that comes or goes between two reads of a look repeats or hides the next ones. Look again until nothing
    # changes, and let the reads begin elsewhere: what one look hides, the others see.
    for number in range(1, _MOST_LOOKS):
        if sum(map(len, looks[-1])) <= _READ_AT_ONCE or looks[-1:] == looks[-2:-1] or budget.is_spent():
            break
        looks.append(_look(_READ_AT_ONCE * number // _MOST_LOOKS, budget))
    texts = {line.partition(": ")[2]: line for look in looks for line in look}
    if os.stat("/proc/self/ns/pid").st_ino != _INITIAL_PID_NAMESPACE:
        texts = {line: f"1: {line}" for line in holders.all()} | texts
    held: dict[str, list[HeldLock]] = {file: [] for file in files.values()}
    for line in map(_LINE.match, texts.values()):
        if line and line["file"] in held:
            is_exclusive = line["mode"] == "WRITE"
            found = HeldLock(_KINDS[line["kind"]], is_exclusive, int(line["start"]), _end(line), *holders.of(line))
            held[line["file"]].append(found)
    return {path: tuple(held[file]) for path, file in files.items() if held[file]}


def parse_locks(info: str, pid: int, fd: int) -> tuple[FileLock, ...]:
    """Parse the locks in the fdinfo of descriptor `fd` of process `pid`."""
    # In fdinfo the line of /proc/locks follows the word `lock:`.
    lines = (_LINE.search(line) for line in info.splitlines() if line.startswith("lock:"))
    return tuple(
        FileLock(_KINDS[line["kind"]], line["mode"] == "WRITE", pid, fd, int(line["start"]), _end(line))
        for line in lines
        if line
    )


def _look(first: int, budget: Budget) -> list[str]:
    """Read /proc/locks once, at first so many bytes."""
    return budget.read("/proc/locks", first).decode().splitlines()


def _file(path: str) -> str:
    """The name of a file in /proc/locks."""
    # Its device is the file system's, which stat(2) does not always report.
    with suppress(OSError):
        # O_PATH, because opening the file itself could act on a device, or break another program's lease.
        with opened(os.open(path, os.O_PATH | os.O_CLOEXEC)) as descriptor:
            info, inode = read_info("self", descriptor), os.fstat(descriptor).st_ino
        mount_id = int(parse_fields(info)["mnt_id"])
        for mount in read_mounts():
            if mount.id == mount_id:
                return f"{os.major(mount.device):02x}:{os.minor(mount.device):02x}:{inode}"
    return ""


def _inode(path: str) -> int:
    """The inode of a file as fdinfo has it, which may differ from stat's (overlayfs); 0 if that is not known."""
    with suppress(OSError), opened(os.open(path, os.O_PATH | os.O_CLOEXEC)) as descriptor:
        return read_open("self", descriptor)[1]
    return 0


def _owner(path: str) -> int | None:
    with suppress(OSError):
        return os.stat(path).st_uid
    return None


def _end(line: re.Match[str]) -> int | None:
    return None if line["end"] == "EOF" else int(line["end"])


class _Holders:
    """Finds the processes that hold locks. Reads each process once: one may hold any number of locks.

    Looks first at processes of the users `near`, and for a few seconds only.
    """

    def __init__(self, near: Container[int]) -> None:
        self._near = near
        self._budget = Budget(OWN_USERS_S)
        self._found: dict[str, int] = {}
        self._names: dict[int, str] = {0: "?"}
        self._looked_at: set[int] = set()
        self._is_all_seen = False

    def of(self, line: re.Match[str]) -> tuple[int, str]:
        """PID and title of the holder."""
        # The PID in the line may be of a process that has ended; OFD locks have none. So look for the process whose
        # fdinfo has the same line, first at that PID, which is usually right.
        what = line[0].partition(": ")[2]
        taker = int(line["pid"])
        with suppress(TimeoutError):
            finish_within(self._budget.left_s, lambda: self._look_at(taker, self._budget))
        pid = self._found.get(what, 0) or self.all().get(what, 0)
        if pid not in self._names:
            self._names[pid] = title(pid)
        return pid, self._names[pid]

    def all(self) -> Mapping[str, int]:
        """Find the locks of all processes that we see: lines of /proc/locks without their numbers, and the holders."""
        if not self._is_all_seen:
            self._is_all_seen = True
            look_at_all(self._near, self._look_at)
        return dict(self._found)

    def _look_at(self, pid: int, budget: Budget) -> None:
        if pid <= 0 or pid in self._looked_at:
            return
        self._looked_at.add(pid)
        with suppress(OSError):
            for fd in list_files(pid):
                if budget.is_spent():
                    return
                with suppress(OSError):
                    for line in budget.read_lines(f"/proc/{pid}/fdinfo/{fd}"):
                        if line.startswith("lock:"):
                            self._found.setdefault(line.partition(": ")[2], pid)


class FileWriter(Struct, frozen=True):
    """A process, and its name."""

    pid: int
    comm: str


def find_writers(paths: Iterable[str]) -> dict[str, FileWriter]:
    """Find a process that can write to each of these files, under whatever name it opened it. By path.

    Looks for a few seconds, and first at processes of root and of the files' owners.
    """
    # A file to which we and our ancestors can only append is not counted: it may be our output.
    identities = {path: identity for path in paths if (identity := _identity(path))}
    wanted = set(identities.values())
    us = (os.getpid(), *ancestors(os.getpid()))
    found: dict[tuple[int, int], FileWriter] = {}
    inodes = frozenset(map(_inode, identities))
    near = {0, os.getuid()} | {owner for path in identities if (owner := _owner(path)) is not None}

    def look(pid: int, budget: Budget) -> None:
        for link in list_writable(pid, appends=pid not in us, look=_Look(budget, inodes)):
            identity = _identity(link)
            if identity is not None and identity in wanted - found.keys():
                found[identity] = FileWriter(pid, title(pid))

    if wanted:
        look_at_all(near, look)
    writers = dict(found)
    return {path: writers[identity] for path, identity in identities.items() if identity in writers}


class _Look(NamedTuple):
    """A look at others: for as long as the budget allows, and at open files with one of these inodes (of fdinfo)."""

    budget: Budget
    inodes: frozenset[int]


def list_writable(pid: int, *, appends: bool = True, look: _Look | None = None) -> Iterator[str]:
    """List links to files that a process has open for writing, and mapped so; `appends`: also what it only appends to.

    With `look` only those that can be meant there.
    """
    with suppress(OSError):
        for fd in list_files(pid):
            if look is not None and look.budget.is_spent():
                return
            flags, inode = read_open(pid, fd)
            if look is not None and inode and inode not in look.inodes:
                continue
            if flags & os.O_ACCMODE != os.O_RDONLY and (appends or not flags & os.O_APPEND):
                yield f"/proc/{pid}/fd/{fd}"
    with suppress(OSError):
        for each in read_maps(pid, look.budget if look is not None else None):
            if look is not None and look.budget.is_spent():
                return
            # Writes to a private map go to a copy, and never reach the file.
            if each.is_writable and each.is_shared:
                yield each.link(pid)


def _identity(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None
