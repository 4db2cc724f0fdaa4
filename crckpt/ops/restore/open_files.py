"""Check that a restored tree has its own files open, not files that a user put in their place.

CRIU opens the files of a tree by their paths, with root's rights. A user who can change a path can put a link to any
file there at any moment, or a file of their own. Each must be the file that the tree had, or one that the program and
every user who can change the path could open too. It must belong to the owner that it had, to root, to the program's
user, or to a user who has a directory of the path: another user could choose what the program reads, or executes.
Where only root can change the path, root may have taken the file away from the program: so it must be the same file, or
one that the program may open; a log to which it only writes, of the same owner.

Of the kernel's own file systems a program keeps only what gives it no right (`crckpt.preflight.kernel_files`).

Files that wait in a unix socket (SCM_RIGHTS) are in no table of descriptors, so crckpt cannot look at what CRIU has
opened: a program of a user gets only those of a kind that gives it no right.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.errors import NOTHING_LEFT, RestoreFailed
from crckpt.host import proc
from crckpt.host.disk.path_trust import Changers, find_changers
from crckpt.host.disk.users import LinkTarget, User, find_refused_user, read_link_target, user_name, users_of
from crckpt.host.observe.files import read_kernel_file
from crckpt.host.proc.maps import read_maps
from crckpt.images.core import ZOMBIE
from crckpt.images.other_files import Fifo
from crckpt.images.regfile import RegularFile
from crckpt.images.tree import ImageProcess, ImageTree
from crckpt.preflight.kernel_files import make_judge
from crckpt.preflight.restore.files import find_needed_path

_ACCESS: Final = {os.O_RDONLY: os.R_OK, os.O_WRONLY: os.W_OK, os.O_RDWR: os.R_OK | os.W_OK}
# CRIU makes them from the images alone, and the kernel asks for no rights of who made them.
_HARMLESS_IN_FLIGHT: Final = frozenset({"pipe", "memfd", "epoll", "eventfd", "signalfd", "timerfd", "pidfd"})


class RecordedFiles(Struct, frozen=True):
    """The files that a tree had open at the dump, by path: file system, inode, and whether for writing.

    Older checkpoints have only the paths that users other than root can change, or no `owners`, the owners that each
    file had, or no `births`: the inode and time of creation of each file, in nanoseconds. `by_inode`: compare inodes
    alone, because the restored tree has other file systems. `heads`: digests of the first bytes of files that it had
    open for writing; `times`: when these were written last. `is_of_this_host`: a file that was not replaced has the
    inode that it had. `in_flight`: the ids, in the images, of those that waited in unix sockets.
    """

    files: dict[str, list[tuple[int, int, int]]]
    owners: dict[str, list[int]] = {}
    by_inode: bool = False
    heads: dict[str, str] = {}
    times: dict[str, float] = {}
    is_of_this_host: bool = False
    births: dict[str, list[tuple[int, int]]] = {}
    in_flight: frozenset[int] = frozenset()

    @classmethod
    def of_details(cls, details: Mapping[str, Any], **known: Any) -> RecordedFiles:
        """Return the files in the details of a checkpoint, with what else is `known`."""
        parts = {name: details.get(f"file_{name}", {}) for name in ("owners", "heads", "times", "births")}
        return cls(details.get("files", {}), **parts, **known)

    @property
    def inodes(self) -> dict[str, frozenset[int]]:
        """The inodes of the files by path."""
        return {path: frozenset(inode for _, inode, _ in found) for path, found in self.files.items()}

    def has(self, path: str, found: LinkTarget, *, writes: bool) -> bool:
        """Return whether the tree had this file open at this path, and it has an owner that it had."""
        is_same = any(
            inode == found.inode and (self.by_inode or device == found.device) and (written or not writes)
            for device, inode, written in self.files.get(path, ())
        )
        return is_same and not self.is_later(path, found) and found.owner in self.owners.get(path, (found.owner,))

    def is_written(self, path: str) -> bool:
        """Return whether the tree had a file open for writing at this path."""
        # CRIU can be misled about this: by maps that other processes exchange (CLONE_VM), or by two files with the same
        # numbers of device and inode (btrfs), of which it takes the first.
        return any(written for _, _, written in self.files.get(path, ()))

    def is_later(self, path: str, found: LinkTarget) -> bool:
        """Return whether the file only got the inode of one that the tree had here, which was removed."""
        # A file that an overlay has copied has another time of creation.
        births = {birth for inode, birth in self.births.get(path, ()) if inode == found.inode}
        return bool(births) and not self.by_inode and found.birth not in births


def check_open_files(
    tree: ImageTree, known: RecordedFiles, init: int | None, *, allow_weaker: bool
) -> tuple[Finding, ...]:
    """In the hold: find files that the tree must not have open.

    The tree is in our PID namespace, or in that of the process `init`. Raises RestoreFailed if it finds any, unless
    `allow_weaker`.
    """
    root = os.open("/" if init is None else f"/proc/{init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = tuple(_Check(tree, known, root).findings(init))
    finally:
        os.close(root)
    if found and not allow_weaker:
        raise RestoreFailed(found[0].what, state=NOTHING_LEFT, hint=found[0].remedy)
    return found


class _FileInUse(Struct, frozen=True):
    """A file that a process uses: the link in /proc that leads to it, and the access that it has (access(2))."""

    link: str
    file: RegularFile
    access: int


class _Check:
    def __init__(self, tree: ImageTree, known: RecordedFiles, root: int) -> None:
        self._tree, self._known, self._root = tree, known, root
        self._find_changers = cache(find_changers)  # each directory is read once
        self._files = {file.id: file for file in tree.regular_files}
        self._inside = {process.pid for process in tree.processes}
        self._rights = {each.pid: each.core.rights for each in tree.processes if each.core.rights is not None}
        self._undumpable = {each.pid for each in tree.processes if each.memory and each.memory.dumpable != 1}
        parents, ours = {each.pid: each.ppid for each in tree.processes}, proc.effective_capabilities()
        self._judges = {pid: make_judge(pid, self._rights, self._undumpable, ours, parents) for pid in self._inside}

    def findings(self, init: int | None) -> Iterator[Finding]:
        yield from self._find_files_in_flight()
        pids = proc.outer_pids(self._inside, init)
        for process in self._tree.processes:
            if process.state == ZOMBIE or process.pid not in pids:
                continue
            yield from self._find_kernel_files(process, pids[process.pid])
            # In its own mounts the recorded paths lead elsewhere.
            # A process may have the same file open many times.
            done: set[tuple[int, int]] = set()
            for used in self._files_in_use(process, pids[process.pid]) if not self._tree.is_apart("mnt") else ():
                if (used.file.id, used.access) not in done:
                    done.add((used.file.id, used.access))
                    yield from self._judge(process, used)

    def _files_in_use(self, process: ImageProcess, pid: int) -> Iterator[_FileInUse]:
        for opened in process.descriptors:
            # Of a named pipe the path is that of another file in the images.
            named = self._files.get(opened.file.file_id or -1) if isinstance(opened.file, Fifo) else opened.file
            if isinstance(named, RegularFile):
                yield _FileInUse(f"/proc/{pid}/fd/{opened.fd}", named, _ACCESS.get(named.flags & os.O_ACCMODE, os.R_OK))
        for name, file in (("exe", process.exe), ("cwd", process.cwd), ("root", process.root)):
            if isinstance(file, RegularFile):
                yield _FileInUse(f"/proc/{pid}/{name}", file, os.X_OK)
        yield from self._find_mapped_files(process, pid)

    def _find_mapped_files(self, process: ImageProcess, pid: int) -> Iterator[_FileInUse]:
        wanted = [vma for vma in process.memory.vmas if vma.file_id in self._files] if process.memory else []
        # Usually a program of root has only files whose paths nobody else can change: then its maps need not be read.
        if not _user_of(process) and not any(self._changers(self._files[vma.file_id or 0]) for vma in wanted):
            return
        maps = read_maps(pid)
        starts = [each.start for each in maps]
        for vma in wanted:
            # The kernel may have joined it with the map before.
            link = maps[bisect_right(starts, vma.start) - 1].link(pid)
            access = os.R_OK | (os.W_OK if vma.may_write_file else 0)
            yield _FileInUse(link, self._files[vma.file_id or 0], access)

    def _changers(self, file: RegularFile) -> Changers:
        path = find_needed_path(file)
        return self._find_changers(Path(path).parent) if path else Changers()

    def _judge(self, process: ImageProcess, used: _FileInUse) -> Iterator[Finding]:
        owner, theirs = process.core.credentials, _user_of(process)
        found, path = read_link_target(used.link), _find_recorded_path(used.file)
        owners = self._known.owners.get(path)
        if who := self._changers(used.file):
            trusted = {0, *who.users, *(each.uid for each in theirs), *(owners or ())}
            # First: the file system may give a new file the inode of the one that was there.
            if found is not None and owners is not None and found.owner not in trusted:
                # It belongs to a user who had no power over the file that the tree had there.
                values = {"path": used.file.path, "found": found.path, "user": user_name(found.owner)}
                yield cause("file-planted").finding(pid=process.pid, comm=process.comm, **values)
            elif found is None or not self._is_right(found, used, None if who.users else owner.euid if owner else 0):
                others = users_of(Changers(who.users - {each.uid for each in theirs}, who.anyone))
                yield from self._find_refusal(process, used, found, (*theirs, *others) or users_of(who))
        elif theirs and owners is not None:
            gains_writing = used.access & os.W_OK and not self._known.is_written(path)
            if gains_writing or self._is_taken_away(found, used, owners):
                yield from self._find_refusal(process, used, found, theirs)

    def _is_taken_away(self, found: LinkTarget | None, used: _FileInUse, owners: list[int]) -> bool:
        """Return whether root may have put another file at this path of root's since the dump."""
        # The file system may give a new file the inode of the one that was there. CRIU compares the modes.
        if found is None or found.owner not in owners:
            return True
        # What is only written to, a log of a daemon of root, is replaced each night; a device at each boot.
        is_kept = self._known.is_of_this_host and used.access != os.W_OK and stat.S_ISREG(used.file.mode or 0)
        path = _find_recorded_path(used.file)
        inodes = {inode for _, inode, _ in self._known.files.get(path, ())}
        return bool(is_kept) and (found.inode not in inodes or self._known.is_later(path, found))

    def _find_kernel_files(self, process: ImageProcess, pid: int) -> Iterator[Finding]:
        """Find files of /proc, /sys and their like that only root may have open."""
        judge = self._judges[process.pid]
        if judge is None:
            return
        for opened in process.descriptors:
            file = opened.file
            if isinstance(file, RegularFile):
                with suppress(OSError):
                    found = read_kernel_file(pid, opened.fd, file.flags)
                    if not judge(found):
                        yield cause("kernel-file").finding(pid=process.pid, comm=process.comm, path=found.path)

    def _find_files_in_flight(self) -> Iterator[Finding]:
        """Find files that wait in a socket, and that a program of a user may receive as root has opened them."""
        living = [process for process in self._tree.processes if process.state != ZOMBIE]
        users = [each for each in living if self._judges[each.pid] is not None]
        if not users:
            return
        # A process has it open, too: there it is checked, with the rights that all have who may receive it.
        are_alike = len({self._rights.get(each.pid) for each in living}) == 1 and not self._undumpable
        checked = {opened.file.id for each in living for opened in each.descriptors} if are_alike else set()
        for file in self._tree.files:
            if file.id in self._known.in_flight - checked and file.kind not in _HARMLESS_IN_FLIGHT:
                yield cause("file-in-flight").finding(pid=users[0].pid, comm=users[0].comm, title=file.title)

    def _is_right(self, found: LinkTarget, used: _FileInUse, uid: int | None) -> bool:
        """Return whether it is the file that the tree had, or one of `uid`: only that user can put it there, as in
        /tmp.
        """
        path = _find_recorded_path(used.file)
        # CRIU opens a removed file by this name if another file has its own now (criu/files-reg.c:2251).
        if found.path not in (path, f"{used.file.path}.cr_link (deleted)"):
            return False
        return found.owner == uid or self._known.has(path, found, writes=bool(used.access & os.W_OK))

    def _find_refusal(
        self, process: ImageProcess, used: _FileInUse, found: LinkTarget | None, users: tuple[User, ...]
    ) -> Iterator[Finding]:
        try:
            who = find_refused_user(used.link, used.access, users, self._root)
        except OSError:
            # A file that cannot be examined is treated as one that they could not open.
            who = users[0]
        if who is not None:
            names = {"path": used.file.path, "found": found.path if found else "nothing", "user": user_name(who.uid)}
            yield cause("file-exchanged").finding(pid=process.pid, comm=process.comm, **names)


def _find_recorded_path(file: RegularFile) -> str:
    """Return the path by which /proc names the file: CRIU gives a removed one its name only to open it."""
    path = find_needed_path(file)
    return file.title if path and file.is_deleted else path


def _user_of(process: ImageProcess) -> tuple[User, ...]:
    """The user of the process; none for root, who may open any file."""
    owner = process.core.credentials
    return (User(owner.euid, owner.egid, owner.groups),) if owner is not None and owner.euid else ()
