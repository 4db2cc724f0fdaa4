"""Check that a restored tree has its own files open, and not files that somebody put in their place.

CRIU opens the files of a tree by their paths, with the rights of root. A user who can change a path may put a link to
any file there, at any moment. So crckpt checks the open files in the hold, before the tree runs: each must be the one
that the tree had, or one that its program, and each user who can change the path, could open as well.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.errors import RestoreFailed
from crckpt.host import proc
from crckpt.host.disk.access import Seen, User, name_of, refused, seen, users_of
from crckpt.host.disk.path_trust import Changers, PathChangers
from crckpt.host.proc.maps import read_maps
from crckpt.images.core import ZOMBIE
from crckpt.images.mm import PROT_WRITE
from crckpt.images.pipes import Fifo
from crckpt.images.regfile import RegularFile
from crckpt.images.tree import ImageTree, Process
from crckpt.preflight.restore.files import needed_path

_ACCESS: Final = {os.O_RDONLY: os.R_OK, os.O_WRONLY: os.W_OK, os.O_RDWR: os.R_OK | os.W_OK}
_MAP_SHARED: Final = 0x01  # sys/mman.h
_PROCESS: Final = re.compile(r"/proc/(\d+)/")


class Known(Struct, frozen=True):
    """By path what a tree had open there: file system, inode, and whether for writing.

    Of those paths that others than root can change. `by_inode` is whether a restored tree has other file systems.
    """

    files: dict[str, list[tuple[int, int, int]]]
    by_inode: bool = False

    def had(self, found: Seen, *, writes: bool) -> bool:
        """Whether this is what it had at that path."""
        return any(
            inode == found.inode and (self.by_inode or device == found.device) and (written or not writes)
            for device, inode, written in self.files.get(found.path, ())
        )


def check(tree: ImageTree, known: Known, init: int | None, *, allow_weaker: bool) -> tuple[Finding, ...]:
    """Find files, in the hold, that the tree must not have open. It is in our PID namespace, or in that of `init`.

    Raises RestoreFailed if there are any, unless they are allowed.
    """
    if tree.is_apart("mnt") or tree.is_apart("pid"):
        return ()
    root = os.open("/" if init is None else f"/proc/{init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = tuple(_Check(tree, known, root).findings(init))
    finally:
        os.close(root)
    if found and not allow_weaker:
        raise RestoreFailed(f"{found[0].what}; nothing is left behind", hint=found[0].remedy)
    return found


class _Held(Struct, frozen=True):
    """A file of a process: the link in /proc that leads to it, and for what it has it (as of access(2))."""

    link: str
    file: RegularFile
    access: int


class _Check:
    def __init__(self, tree: ImageTree, known: Known, root: int) -> None:
        self._tree, self._known, self._root = tree, known, root
        self._paths = PathChangers()
        self._files = {file.id: file for file in tree.regular_files}
        self._inside = {process.pid for process in tree.processes}

    def findings(self, init: int | None) -> Iterator[Finding]:
        pids = proc.outer_pids(self._inside, init)
        for process in self._tree.processes:
            if process.state != ZOMBIE and process.pid in pids:
                done: set[tuple[int, int]] = set()
                for held in self._held(process, pids[process.pid]):
                    if (held.file.id, held.access) not in done:
                        done.add((held.file.id, held.access))
                        yield from self._finding(process, held)

    def _held(self, process: Process, pid: int) -> Iterator[_Held]:
        for opened in process.descriptors:
            # Of a named pipe the path is that of another file in the images.
            named = self._files.get(opened.file.file_id or -1) if isinstance(opened.file, Fifo) else opened.file
            if isinstance(named, RegularFile):
                yield _Held(f"/proc/{pid}/fd/{opened.fd}", named, _ACCESS.get(named.flags & os.O_ACCMODE, os.R_OK))
        for name, file in (("exe", process.exe), ("cwd", process.cwd), ("root", process.root)):
            if isinstance(file, RegularFile):
                yield _Held(f"/proc/{pid}/{name}", file, os.X_OK)
        yield from self._mapped(process, pid)

    def _mapped(self, process: Process, pid: int) -> Iterator[_Held]:
        wanted = [vma for vma in process.memory.vmas if vma.file_id in self._files] if process.memory else []
        if not any(self._changers(self._files[vma.file_id or 0]) for vma in wanted):
            return
        maps = read_maps(pid)
        starts = [each.start for each in maps]
        for vma in wanted:
            link = maps[bisect_right(starts, vma.start) - 1].link(pid)
            writes = vma.flags & _MAP_SHARED and vma.prot & PROT_WRITE
            yield _Held(link, self._files[vma.file_id or 0], os.R_OK | (os.W_OK if writes else 0))

    def _changers(self, file: RegularFile) -> Changers:
        path = needed_path(file)
        return self._paths(path) if path else Changers()

    def _finding(self, process: Process, held: _Held) -> Iterator[Finding]:
        owner = process.core.credentials
        theirs = (User(owner.euid, owner.egid, owner.groups),) if owner is not None and owner.euid else ()
        found = seen(held.link)
        if who := self._changers(held.file):
            if found is None or not self._is_right(found, held, None if who.users else owner.euid if owner else 0):
                others = users_of(Changers(who.users - {each.uid for each in theirs}))
                yield from self._told(process, held, (*theirs, *others) or users_of(who))
        elif theirs and self._is_of_another(held) and (found is None or found.owner != theirs[0].uid):
            yield _say(process, held, theirs[0])

    def _is_of_another(self, held: _Held) -> bool:
        """Whether it is of a process outside: the right to see it comes from that process, not from its path."""
        of_process = _PROCESS.match(held.file.path)
        return of_process is not None and int(of_process[1]) not in self._inside

    def _is_right(self, found: Seen, held: _Held, uid: int | None) -> bool:
        """Whether it is what was there, or is of `uid` where nobody else can put what is of that user (as in /tmp)."""
        if found.path != needed_path(held.file):
            return False
        return found.owner == uid or self._known.had(found, writes=bool(held.access & os.W_OK))

    def _told(self, process: Process, held: _Held, users: tuple[User, ...]) -> Iterator[Finding]:
        try:
            who = refused(held.link, held.access, users, self._root)
        except OSError:
            who = users[0]
        if who is not None:
            yield _say(process, held, who)


def _say(process: Process, held: _Held, who: User) -> Finding:
    found = seen(held.link)
    told = {"path": held.file.path, "found": found.path if found else "nothing", "user": name_of(who)}
    return cause("file-exchanged").told(pid=process.pid, comm=process.comm, **told)
