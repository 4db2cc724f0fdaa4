"""What stands against a restore on this host, by name, and what would no longer agree. Pure."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.host.observe.sockets import Binding
from crckpt.host.proc import Owner
from crckpt.host.proc.locks import Held
from crckpt.images.files import OpenFile
from crckpt.images.locks import FileLock
from crckpt.images.mm import PROT_EXEC
from crckpt.images.regular import LINKED, RegularFile
from crckpt.images.sockets import DATAGRAM, InetSocket
from crckpt.images.special import Fifo, Pipe, Terminal
from crckpt.images.tree import ImageTree, Process
from crckpt.model import release
from crckpt.preflight import needs
from crckpt.preflight.locks import kept_out
from crckpt.preflight.needs import Here

if TYPE_CHECKING:
    from crckpt.host.disk.packages import Package
    from crckpt.host.proc.writers import Writer

Grown = Literal["refuse", "keep", "rewind"]
"""What to do with files that only grew since the checkpoint."""


class FileNow(Struct, frozen=True):
    """A file of this host, as it is now: sizes in bytes.

    `written` is when its content changed, `changed` when anything of it did, its name too. `is_linked`: its path leads
    through a symbolic link. `owner` is a user id.
    """

    size: int
    mode: int
    written: datetime
    changed: datetime
    build_id: str
    is_linked: bool = False
    owner: int = 0


class Now(Struct, frozen=True):
    """What this host says of everything a checkpoint needs. A file that is missing stands as None.

    `refused` says of sockets, by id, why their address cannot be had; `packages` by path of files that changed whose
    they are; `locks` by path who holds which; `writers` by path of files that changed who has them open for writing,
    if any is to be cut back; `us` is crckpt's own PID.
    """

    owners: tuple[Owner, ...]
    files: dict[str, FileNow | None]
    refused: dict[int, Literal["taken", "missing"]]
    here: Here
    packages: dict[str, Package] = {}
    locks: dict[str, tuple[Held, ...]] = {}
    writers: dict[str, Writer] = {}
    us: int = 0


class Rewind(Struct, frozen=True):
    """A file to cut back to the size in bytes that it had."""

    path: str
    size: int


class OutsidePipe(Struct, frozen=True):
    """A pipe into which the tree writes, and that somebody outside of it read; `errors`: only as standard error (fd 2).

    One that the tree reads is none: CRIU makes it again with the bytes in it, and nobody can write to it.
    """

    inode: int
    errors: bool


class Verdict(Struct, frozen=True):
    """With blockers a restore must not begin.

    `two_way_pipes` are inodes of pipes with a descriptor both to read and to write (of /proc/PID/fd), which CRIU gives
    back only for reading unless it gets the pipe (criu/pipes.c, mark_pipe_master_cb).
    """

    blockers: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    rewinds: tuple[Rewind, ...]
    outside_pipes: tuple[OutsidePipe, ...]
    needs_terminal: bool
    two_way_pipes: frozenset[int] = frozenset()

    @property
    def is_in_use(self) -> bool:
        """Whether something that the tree needs is another's at this moment."""
        return any(finding.key in _IN_USE for finding in self.blockers)


class Wanted(Struct, frozen=True):
    """What the checkpoint knows and what the user chose.

    `append_sizes` are the sizes of files opened for appending, which CRIU does not record; `cpu_features` are those
    of the CPU of the dump. With `keeps_connections` TCP connections go on. `crius` are the versions of the CRIU
    that dumped it and of the one that is to restore it. `closed_pipes` are inodes of pipes of which nobody had the
    other end; a checkpoint that was imported, or made by an older crckpt, does not name them. `sockets` are those of
    our descriptors for the tree's output, 1 and 2, that are sockets. `terminal_owner` is the user whose terminal the
    tree gets; None if whose it is does not matter. `may_have_consoles` is whether that does not matter for consoles
    that the tree had open itself.
    """

    tree: ImageTree
    created: datetime
    cpu_features: tuple[str, ...]
    keeps_connections: bool
    append_sizes: dict[str, int]
    grown: Grown
    new_pid_namespace: bool
    has_terminal: bool
    crius: tuple[str, str]
    closed_pipes: frozenset[int] = frozenset()
    is_orphan: bool = False
    sockets: frozenset[int] = frozenset()
    terminal_owner: int | None = None
    may_have_consoles: bool = False


def numbers(tree: ImageTree) -> frozenset[int]:
    """Every PID, thread id, group and session id that must be free for a restore.

    Not the session and the group of the shell that started the tree: CRIU takes its own in their place (`--shell-job`).
    Source: criu/pstree.c, prepare_pstree_for_shell_job.
    """
    root = tree.root
    of_shell = {root.sid, root.pgid} - {root.pid}
    members = {number for process in tree.processes for number in (process.pgid, process.sid)}
    tasks = {thread.tid for process in tree.processes for thread in process.threads}
    tasks.update(process.pid for process in tree.processes)
    return frozenset(number for number in tasks | (members - of_shell) if number > 0)


def paths(tree: ImageTree) -> tuple[RegularFile, ...]:
    """The files that must be there, each path once. None for a tree that brings its own mount namespace."""
    if tree.is_apart("mnt"):
        return ()
    wanted: dict[str, RegularFile] = {}
    for file in tree.regular_files:
        path = required_path(file)
        if path and (path not in wanted or wanted[path].size is None):
            wanted[path] = file
    return tuple(wanted.values())


def required_path(file: RegularFile) -> str:
    """Where CRIU will open it; empty where nothing needs to be there."""
    path = file.path if file.remap is None else file.remap.path if file.remap.kind == LINKED else ""
    # Of processes that come back with the tree, and of terminals whose master is in it.
    brought_along = path.startswith(("/proc/", "/dev/pts/"))
    return path if path.startswith("/") and not brought_along and not file.external else ""


def locked(tree: ImageTree) -> Iterator[tuple[FileLock, str, str]]:
    """The locks to be taken again: on which path, and who had each, by which descriptor."""
    needed = {required_path(file) for file in paths(tree)}
    holders = {process.pid: process for process in tree.processes}
    for lock in tree.locks:
        holder = holders[lock.pid]
        for opened in holder.descriptors:
            if opened.fd == lock.fd and isinstance(opened.file, RegularFile):
                path = required_path(opened.file)
                if path in needed:
                    yield lock, path, f"fd {lock.fd} of {holder.comm}, PID {lock.pid}"


def bound(wanted: Wanted) -> Iterator[tuple[InetSocket, Binding]]:
    """The sockets whose addresses a restore must have, and what for. None if the tree brings its own network."""
    if wanted.tree.is_apart("net"):
        return
    for socket in wanted.tree.inet_sockets:
        if socket.is_listening:
            yield socket, "listen"
        elif socket.is_established_tcp and wanted.keeps_connections:
            yield socket, "connection"
        elif socket.type == DATAGRAM and socket.source.port and not socket.interface:
            yield socket, "datagram"


def changed(wanted: Wanted, now: Now) -> tuple[str, ...]:
    """Paths of the files that are not as they were, and stand against a restore or would be cut back."""
    uses_of_files = _uses_of_files(wanted.tree)
    return tuple(
        required_path(file)
        for file in paths(wanted.tree)
        if any(found.key not in _HARMLESS for found, _ in _file(wanted, file, now, "opened", uses_of_files))
    )


def judge(wanted: Wanted, now: Now) -> Verdict:
    """Compare what the checkpoint needs with what is."""
    used = uses(wanted.tree)
    blockers: list[Finding] = []
    warnings: list[Finding] = []
    rewinds: list[Rewind] = []
    if not wanted.new_pid_namespace:
        blockers.extend(_taken(owner, now.us) for owner in _distinct(now.owners))
    uses_of_files = _uses_of_files(wanted.tree)
    for file in paths(wanted.tree):
        for finding, rewind in _file(wanted, file, now, used.get(file.id, "opened"), uses_of_files):
            if rewind is not None:
                rewinds.append(rewind)
            (warnings if rewind is not None or finding.key in _HARMLESS else blockers).append(finding)
    blockers.extend(_refused(socket, now.refused[socket.id]) for socket, _ in bound(wanted) if socket.id in now.refused)
    kept = (kept_out(lock, path, who, now.locks.get(path, ())) for lock, path, who in locked(wanted.tree))
    blockers.extend(finding for finding in kept if finding is not None)
    blockers.extend(_user_namespaces(wanted.tree))
    blockers.extend(_older(*wanted.crius))
    blockers.extend(needs.lacking(wanted.tree, wanted.cpu_features, max(numbers(wanted.tree)), now.here))
    warnings.extend(needs.warnings(now.here))
    warnings.extend(_parent_death(wanted))
    needs_terminal = _needs_terminal(wanted.tree)
    if needs_terminal and not wanted.has_terminal:
        blockers.append(cause("terminal").told())
    if needs_terminal and wanted.has_terminal:
        blockers.extend(_other_users_terminal(wanted))
    if needs_terminal and wanted.has_terminal and wanted.new_pid_namespace and _has_outer_group(wanted.tree):
        blockers.append(cause("terminal-group-outside").told())
    if not wanted.may_have_consoles:
        blockers.extend(_other_users_consoles(wanted.tree, now))
    pipes = _outside_pipes(wanted)
    if any((_STDERR if pipe.errors else _STDOUT) in wanted.sockets for pipe in pipes):
        blockers.append(cause("output-socket").told())
    return Verdict(tuple(blockers), tuple(warnings), tuple(rewinds), pipes, needs_terminal, _two_way_pipes(wanted.tree))


def _other_users_consoles(tree: ImageTree, now: Now) -> Iterator[Finding]:
    """Find consoles that CRIU would open as root for a program of another user than the one they belong to now.

    Who has one open reads what is typed there; whose controlling terminal it is can type itself (TIOCSTI).
    """
    kinds = {terminal.id: terminal for terminal in tree.terminals}
    found: dict[str, Finding] = {}
    for process in tree.processes:
        for file in {id(held.file): held.file for held in process.descriptors}.values():
            terminal = kinds.get(file.info_id) if isinstance(file, Terminal) else None
            there = now.files.get(file.path) if isinstance(file, Terminal) else None
            if not isinstance(file, Terminal) or terminal is None or there is None:
                continue
            others = _users((process,)) - {0, there.owner}
            is_harmless = file.flags & os.O_ACCMODE == os.O_WRONLY and not terminal.session
            if others and terminal.kind in _CONSOLES and not is_harmless:
                told = cause("console-of-another").told(path=file.path, user=min(others), owner=there.owner)
                found.setdefault(file.path, told)
    yield from found.values()


def _users(processes: Iterable[Process]) -> set[int]:
    """Who these processes run as."""
    threads = (thread for process in processes for thread in process.threads)
    known = (thread.core.credentials for thread in threads)
    return {user for each in known if each is not None for user in (each.uid, each.euid)}


def _other_users_terminal(wanted: Wanted) -> Iterator[Finding]:
    """Who has a terminal can type into it (TIOCSTI), for the shell that reads from it next."""
    others = _users(wanted.tree.processes) - {0, wanted.terminal_owner}
    if wanted.terminal_owner is not None and others:
        yield cause("terminal-of-another").told(user=min(others), owner=wanted.terminal_owner)


def _parent_death(wanted: Wanted) -> Iterator[Finding]:
    root = wanted.tree.root
    found = {thread.core.parent_death_signal for thread in root.threads} - {0}
    if wanted.is_orphan and found:
        yield cause("parent-death").told(pid=str(root.pid), signal=" ".join(str(number) for number in sorted(found)))


UNCONDITIONAL = frozenset({"user-namespace-recorded"})
"""Keys of blockers that --no-preflight does not lift."""
_STDOUT, _STDERR = 1, 2
_CONSOLES = ("console", "virtual console", "external", "serial")
"""Terminals that stay when the program has gone, for whoever logs in there next."""
_HARMLESS = ("file-written", "log-kept")
_IN_USE = ("pid-taken", "pid-ours", "pid-unreaped", "port-taken", "lock-taken", "file-being-written")
_KINDS = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "directory",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
}


def _user_namespaces(tree: ImageTree) -> Iterator[Finding]:
    """Find processes that were dumped in another user namespace than CRIU's."""
    outside = tree.inventory.root_ids.namespaces.user
    for process in tree.processes:
        if process.ids is not None and process.ids.namespaces.user != outside:
            yield cause("user-namespace-recorded").told(pid=process.pid, comm=process.comm)


def _older(recorded: str, version: str) -> Iterator[Finding]:
    """That this CRIU is the older one. Nothing where either is not known, as of images that were imported.

    From one release to the next what images hold changes: CRIU before 4.2 finds no page in those of 4.2.
    """
    made, ours = release(recorded), release(version)
    if made and ours and ours < made:
        yield cause("older-criu").told(recorded=recorded, version=version)


def _distinct(owners: tuple[Owner, ...]) -> Iterator[Owner]:
    """One owner of each process: that its PID is taken says enough of its threads."""
    taken = {owner.number for owner in owners if owner.role == "PID"}
    yield from (owner for owner in owners if owner.role == "PID" or owner.pid not in taken)


def _taken(owner: Owner, us: int) -> Finding:
    key = "pid-ours" if owner.pid == us else "pid-unreaped" if owner.state == "zombie" else "pid-taken"
    return cause(key).told(kind=owner.role, pid=owner.number, comm=owner.comm, owner=owner.pid, parent=owner.ppid)


def _refused(socket: InetSocket, why: Literal["taken", "missing"]) -> Finding:
    protocol, options = ("UDP", "-lunp") if socket.type == DATAGRAM else ("TCP", "-ltnp")
    return cause("port-taken" if why == "taken" else "address-missing").told(
        protocol=protocol,
        address=socket.source,
        host=socket.source.host,
        port=socket.source.port,
        options=options,
    )


class _UsesOfFiles(Struct, frozen=True):
    """What of a tree counts for each of its files: the paths of its programs, and by path the ends of its logs."""

    programs: frozenset[str]
    ends: dict[str, int]


def _uses_of_files(tree: ImageTree) -> _UsesOfFiles:
    ends: dict[str, int] = {}
    for file in tree.regular_files:
        if file.is_append_only:
            path = required_path(file)
            ends[path] = max(file.pos, ends.get(path, 0))
    return _UsesOfFiles(_programs(tree), ends)


def _file(
    wanted: Wanted, file: RegularFile, host: Now, use: str, uses_of_files: _UsesOfFiles
) -> Iterator[tuple[Finding, Rewind | None]]:
    path = required_path(file)
    now, package = host.files.get(path), host.packages.get(path)

    def told(key: str, **more: object) -> Finding:
        since = _said(now.changed) if now else "?"
        return cause(key).told(**{"path": path, "use": use, "created": _said(wanted.created), "since": since, **more})

    # The time of a package has no fractions of a second.
    if package is not None and package.since >= wanted.created.replace(microsecond=0):
        # Whatever became of its files: all of them changed together, and nobody wants one of them cut back.
        before = {"before": package.before} if package.before else {}
        yield (
            told("file-upgraded", package=package.name, version=package.version, since=_said(package.since), **before),
            None,
        )
        return
    if now is None:
        yield told("file-missing"), None
        return
    if file.mode is not None and stat.S_IFMT(file.mode) != stat.S_IFMT(now.mode):
        yield told("file-kind", was=_kind(file.mode), now=_kind(now.mode)), None
        return
    if file.mode is not None and file.mode != now.mode and file.remap is None:
        yield told("file-mode", mode=f"{file.mode & 0o7777:04o}", now=f"{now.mode & 0o7777:04o}"), None
    if not stat.S_ISREG(now.mode):
        return
    size = file.size if file.size is not None else _appended_size(wanted, path, uses_of_files.ends)
    resized = size is not None and size != now.size
    if file.build_id and file.build_id != now.build_id and (now.build_id or resized):
        # Before its size: a longer build of a library is not to be cut back.
        yield told("file-replaced", build_id=file.build_id), None
    elif size is not None and resized:
        writer = host.writers.get(path)
        key = _resized(wanted, file, now, size, writer, uses_of_files.programs)
        who = {"comm": writer.comm, "writer": writer.pid} if writer else {}
        yield told(key, size=size, now=now.size, **who), Rewind(path, size) if key == "file-rewound" else None
    elif now.written > wanted.created:
        yield told("file-written", when=_said(now.written)), None


def _said(when: datetime) -> str:
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "file of another kind")


def _appended_size(wanted: Wanted, path: str, ends: dict[str, int]) -> int | None:
    """Appending moves the position to the file's end: one beyond the size seen before the freeze is right.

    Of several descriptors of one file, the last to write stands at its end.
    """
    seen = wanted.append_sizes.get(path)
    if seen is None:
        return None
    return max(seen, ends.get(path, 0))


def _resized(
    wanted: Wanted, file: RegularFile, now: FileNow, size: int, writer: Writer | None, programs: frozenset[str]
) -> str:
    """The cause to tell of a file that had `size` bytes."""
    if now.size < size:
        return "file-shrunk"
    if required_path(file) in programs:
        return "program-grown"
    if wanted.grown == "rewind":
        return "file-being-written" if writer else "file-linked" if now.is_linked else "file-rewound"
    if not file.is_append_only:
        return "file-grown"
    return "log-kept" if wanted.grown == "keep" else "log-grown"


def _programs(tree: ImageTree) -> frozenset[str]:
    """Paths of what the tree runs: a longer one is another build, even where no build-id tells."""
    paths_of = {file.id: required_path(file) for file in tree.regular_files}
    found = set()
    for process in tree.processes:
        found.add(paths_of.get(process.exe.id, "") if process.exe is not None else "")
        for vma in process.memory.vmas if process.memory is not None else ():
            if vma.prot & PROT_EXEC and vma.file_id is not None:
                found.add(paths_of.get(vma.file_id, ""))
    return frozenset(found - {""})


def uses(tree: ImageTree) -> dict[int, str]:
    """File id -> who uses it, and how."""
    found: dict[int, str] = {}
    tables: set[int] = set()
    for process in tree.processes:
        who = f"{process.comm}, PID {process.pid}"
        # A table that processes share says the same of each.
        own = () if id(process.descriptors) in tables else process.descriptors
        tables.add(id(process.descriptors))
        for descriptor in own:
            for file_id in _ids(descriptor.file):
                found.setdefault(file_id, f"fd {descriptor.fd} of {who}")
        for mapped in process.mapped:
            found.setdefault(mapped.id, f"mapped by {who}")
        for place, what in ((process.exe, "program"), (process.cwd, "directory"), (process.root, "root directory")):
            if place is not None:
                found.setdefault(place.id, f"{what} of {who}")
    return found


def _ids(file: OpenFile) -> tuple[int, ...]:
    """Its id, and that of the file with its path where that is another."""
    behind = file.file_id if isinstance(file, Fifo | Terminal) else None
    return (file.id,) if behind is None else (file.id, behind)


def _outside_pipes(wanted: Wanted) -> tuple[OutsidePipe, ...]:
    """Where it is not known whether anybody read, somebody did: the program is not to be ended by SIGPIPE."""
    tree = wanted.tree
    ends: dict[int, set[int]] = {}
    numbers: dict[int, set[int]] = {}
    for process in tree.processes:
        for opened in process.descriptors:
            if isinstance(opened.file, Pipe):
                numbers.setdefault(opened.file.pipe_id, set()).add(opened.fd)
    for file in tree.files:
        if isinstance(file, Pipe):
            ends.setdefault(file.pipe_id, set()).add(file.flags & os.O_ACCMODE)
    return tuple(
        OutsidePipe(inode, errors=numbers.get(inode) == {_STDERR})
        for inode, found in ends.items()
        if found == {os.O_WRONLY} and inode not in wanted.closed_pipes
    )


def _two_way_pipes(tree: ImageTree) -> frozenset[int]:
    pipes = (file for file in tree.files if isinstance(file, Pipe))
    return frozenset(pipe.pipe_id for pipe in pipes if pipe.flags & os.O_ACCMODE == os.O_RDWR)


def _has_outer_group(tree: ImageTree) -> bool:
    """Whether the root is in the group of whoever started it: CRIU takes its own, which a new namespace has not."""
    return tree.root.pgid != tree.root.pid


def _needs_terminal(tree: ImageTree) -> bool:
    """Whether one of the tree's terminals is outside it. Source: criu/tty.c, tty_find_restoring_task.

    CRIU opens consoles by their names, and /dev/tty in its session: of one that is not in the tree, images name none.
    """
    masters = {terminal.index for terminal in tree.terminals if terminal.is_master}
    slaves = {terminal.index for terminal in tree.terminals if terminal.kind == "pty" and not terminal.is_hung_up}
    return bool(slaves - masters) or any(
        terminal.kind == "current" and not terminal.session for terminal in tree.terminals
    )
