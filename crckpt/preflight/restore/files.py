"""Check the files of a checkpoint before a restore."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.host.disk.checked_files import begins_with
from crckpt.images.files import OpenFile
from crckpt.images.mm import FILE_SHARED, PROT_EXEC, PROT_WRITE
from crckpt.images.pipes import Fifo
from crckpt.images.regfile import LINKED, RegularFile
from crckpt.images.tree import ImageTree
from crckpt.images.tty import Terminal
from crckpt.model import utc_datetime
from crckpt.preflight.restore.host import FileState, HostState
from crckpt.preflight.restore.plan import Grown, PlannedRestore

if TYPE_CHECKING:
    from crckpt.host.proc.writers import FileWriter

HARMLESS = ("file-written", "log-kept", "log-appended")
"""Keys of findings about files that do not prevent a restore."""

_KINDS = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "directory",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
}


class Rewind(Struct, frozen=True):
    """A file to cut back to the size in bytes that it had at the checkpoint."""

    path: str
    size: int


class CheckedFiles(Struct, frozen=True):
    """The result of the check of all files."""

    blockers: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    rewinds: tuple[Rewind, ...]


def check_files(planned: PlannedRestore, host: HostState) -> CheckedFiles:
    """Compare every file that the tree needs with the file of this host."""
    uses = file_uses(planned.tree)
    facts = read_file_facts(planned.tree)
    blockers: list[Finding] = []
    warnings: list[Finding] = []
    rewinds: list[Rewind] = []
    for file in find_needed_files(planned.tree):
        here = host.files.get(find_needed_path(file))
        if here is not None and here.is_redirected:
            blockers.append(cause("open-linked").finding(path=find_needed_path(file).lstrip("/")))
            continue
        for finding, rewind in check_file(planned, file, host, uses.get(file.id, "opened"), facts):
            if rewind is not None:
                rewinds.append(rewind)
            (warnings if rewind is not None or finding.key in HARMLESS else blockers).append(finding)
    return CheckedFiles(tuple(blockers), tuple(warnings), tuple(rewinds))


def find_changed_paths(planned: PlannedRestore, host: HostState) -> tuple[str, ...]:
    """Return the paths of changed files that prevent a restore or would be cut back."""
    facts = read_file_facts(planned.tree)
    return tuple(
        find_needed_path(file)
        for file in find_needed_files(planned.tree)
        if any(found.key not in HARMLESS for found, _ in check_file(planned, file, host, "opened", facts))
    )


def find_needed_files(tree: ImageTree) -> tuple[RegularFile, ...]:
    """Return the files that must be there, each path once. None for a tree that brings its own mount namespace."""
    # CRIU mounts what such a tree had: there, the paths lead elsewhere.
    if tree.is_apart("mnt"):
        return ()
    needed: dict[str, RegularFile] = {}
    for file in tree.regular_files:
        path = find_needed_path(file)
        # CRIU records no size of a file that is open for appending: prefer an open file that has one.
        if path and (path not in needed or needed[path].size is None):
            needed[path] = file
    return tuple(needed.values())


def find_needed_path(file: RegularFile) -> str:
    """Return the path at which CRIU will open the file; empty if nothing must be there."""
    # A deleted file comes from the images, unless CRIU linked it to another name (--link-remap).
    path = file.path if file.remap is None else file.remap.path if file.remap.kind == LINKED else ""
    # These come back with the tree: its processes, and terminals whose master is in it.
    is_restored = path.startswith(("/proc/", "/dev/pts/"))
    return path if path.startswith("/") and not is_restored and not file.external else ""


def file_uses(tree: ImageTree) -> dict[int, str]:
    """Return which process uses each file, and how, by file id."""
    uses: dict[int, str] = {}
    tables: set[int] = set()
    for process in tree.processes:
        name = f"{process.comm}, PID {process.pid}"
        # Processes that share a table of descriptors have the same ones.
        own = () if id(process.descriptors) in tables else process.descriptors
        tables.add(id(process.descriptors))
        for descriptor in own:
            for file_id in _ids(descriptor.file):
                uses.setdefault(file_id, f"fd {descriptor.fd} of {name}")
        for mapped in process.mapped:
            uses.setdefault(mapped.id, f"mapped by {name}")
        for place, what in ((process.exe, "program"), (process.cwd, "directory"), (process.root, "root directory")):
            if place is not None:
                uses.setdefault(place.id, f"{what} of {name}")
    return uses


def _ids(file: OpenFile) -> tuple[int, ...]:
    """Return the file's id, and the id of the file with its path if that is another."""
    behind = file.file_id if isinstance(file, Fifo | Terminal) else None
    return (file.id,) if behind is None else (file.id, behind)


class FileFacts(Struct, frozen=True):
    """Facts that only the whole tree shows: the paths of its programs, and the end of each log by path.

    `written`: paths of files that the tree writes in place; `outputs`: of those of them that it never reads. `logs`:
    paths of those that it only appends to.
    """

    programs: frozenset[str]
    ends: dict[str, int]
    written: frozenset[str]
    outputs: frozenset[str]
    logs: frozenset[str]


def read_file_facts(tree: ImageTree) -> FileFacts:
    """Read the facts that only the whole tree shows."""
    ends: dict[str, int] = {}
    appended, written, read = set(), set(), set()
    shared, mapped = find_shared_maps(tree), {file.id for process in tree.processes for file in process.mapped}
    for file in tree.regular_files:
        path = find_needed_path(file)
        if file.is_append_only:
            ends[path] = max(file.pos, ends.get(path, 0))
        if file.id in shared or (file.is_writable and not file.flags & os.O_APPEND):
            written.add(path)
        elif file.is_writable:
            appended.add(path)
        if file.flags & os.O_ACCMODE != os.O_WRONLY:
            read.add(path)
    # The memory of a map would end where a rotated log does.
    others = {find_needed_path(file) for file in tree.regular_files if file.id in mapped}
    logs = appended - written - others
    return FileFacts(_programs(tree), ends, frozenset(written), frozenset(written - read - others), frozenset(logs))


def find_shared_maps(tree: ImageTree) -> frozenset[int]:
    """Return the ids of the files to which the tree writes through maps."""
    return frozenset(
        vma.file_id
        for process in tree.processes
        for vma in (process.memory.vmas if process.memory is not None else ())
        if vma.file_id is not None and vma.status & FILE_SHARED and vma.prot & PROT_WRITE
    )


def find_unsized(tree: ImageTree, grown: Grown) -> frozenset[int]:
    """Return the ids of files of which CRIU must not compare the size: logs that stay as they are."""
    logs = read_file_facts(tree).logs if grown == "keep" else frozenset()
    return frozenset(file.id for file in tree.regular_files if find_needed_path(file) in logs)


def check_file(
    planned: PlannedRestore, file: RegularFile, host: HostState, use: str, facts: FileFacts
) -> Iterator[tuple[Finding, Rewind | None]]:
    """Compare a file that the tree needs with the file of this host. `use`: how the tree uses it, for people."""
    path = find_needed_path(file)
    now, package = host.files.get(path), host.packages.get(path)

    def finding(key: str, **more: object) -> Finding:
        since = _local_time(now.changed) if now else "?"
        values = {"path": path, "use": use, "created": _local_time(planned.created), "since": since, **more}
        return cause(key).finding(**values)

    # The time of a package has no fractions of a second.
    if package is not None and package.since >= planned.created.replace(microsecond=0):
        # All files of a package change together: the upgrade is the only finding, and none of them is cut back.
        before = {"before": package.before} if package.before else {}
        since = _local_time(package.since)
        yield finding("file-upgraded", package=package.name, version=package.version, since=since, **before), None
        return
    if now is None:
        owner = next(iter(planned.owners.get(path, ())), None)
        more = {"mode": f"{(file.mode or 0) & 0o7777:04o}", "owner": owner, "origin": file.path}
        yield finding(_find_missing_key(file, facts, is_owned=owner is not None), **more), None
        return
    if file.mode is not None and stat.S_IFMT(file.mode) != stat.S_IFMT(now.mode):
        yield finding("file-kind", was=_kind(file.mode), now=_kind(now.mode)), None
        return
    # CRIU compares the mode of a file, except of one that it makes again.
    if file.mode is not None and file.mode != now.mode and file.remap is None:
        yield finding("file-mode", mode=f"{file.mode & 0o7777:04o}", now=f"{now.mode & 0o7777:04o}"), None
    if not stat.S_ISREG(now.mode):
        return
    size = file.size if file.size is not None else _find_appended_size(planned, path, facts.ends)
    is_resized = _is_resized(planned, file, size, now.size)
    # Compare the build before the size: a longer build of a library must not be cut back.
    if file.build_id and file.build_id != now.build_id and (now.build_id or is_resized):
        yield finding("file-replaced", build_id=file.build_id), None
    elif size is not None and is_resized:
        writer = host.writers.get(path)
        key = _find_resized_key(planned, path, now, size, writer, facts)
        named = {"comm": writer.comm, "writer": writer.pid} if writer else {}
        yield finding(key, size=size, now=now.size, **named), Rewind(path, size) if key == "file-rewound" else None
    elif now.written > _find_last_write(planned, path):
        is_allowed = planned.written == "keep" or planned.still_runs or planned.is_rehearsal
        key = "file-written" if is_allowed or path not in facts.written else "data-written"
        yield finding(key, when=_local_time(now.written)), None


def _find_last_write(planned: PlannedRestore, path: str) -> datetime:
    """Return when a file was written last before the checkpoint, as far as that is known."""
    # A file server's clock is not ours.
    time = planned.times.get(path)
    return planned.created if time is None else utc_datetime(time)


def _local_time(when: datetime) -> str:
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "file of another kind")


def _is_resized(planned: PlannedRestore, file: RegularFile, size: int | None, now: int) -> bool:
    # What a tree that runs on writes is no reason.
    return size is not None and size != now and not (planned.still_runs and file.is_writable and size < now)


def _find_appended_size(planned: PlannedRestore, path: str, ends: dict[str, int]) -> int | None:
    """Return the size at the dump of a file opened for appending; None if it is not known."""
    before_freeze = planned.append_sizes.get(path)
    if before_freeze is None:
        return None
    # Each append moves the position to the file's end. Of several descriptors, the last to write stands there.
    return max(before_freeze, ends.get(path, 0))


def _find_missing_key(file: RegularFile, facts: FileFacts, *, is_owned: bool) -> str:
    """Return the key of the cause that applies to a missing file. `is_owned`: its owner is known."""
    if file.is_deleted:
        return "link-missing"
    if is_owned and stat.S_ISDIR(file.mode or 0):
        return "directory-missing"
    return "log-missing" if is_owned and file.path in facts.logs else "file-missing"


def _find_resized_key(
    planned: PlannedRestore, path: str, now: FileState, size: int, writer: FileWriter | None, facts: FileFacts
) -> str:
    """Return the key of the cause that applies to a file that had `size` bytes."""
    is_log, is_same = path in facts.logs, _is_same(planned, path, now)
    if is_log and (now.size < size or not is_same):
        return "log-appended" if planned.grown == "keep" or planned.is_rehearsal else "log-rotated"
    if now.size < size:
        return "output-shrunk" if path in facts.outputs else "file-shrunk"
    # A longer program or library is another build, even if it has no build-id.
    if path in facts.programs:
        return "program-grown"
    if not is_same:
        return "file-other"
    # Cutting a file back under its writer would lose lines; through a link it might be a file of another user.
    if planned.grown == "rewind":
        return "file-being-written" if writer else "file-linked" if now.is_linked else "file-rewound"
    if not is_log:
        return "file-grown"
    return "log-kept" if planned.grown == "keep" else "log-grown"


def _is_same(planned: PlannedRestore, path: str, now: FileState) -> bool:
    """Return whether it is the file of the checkpoint, as far as that is known: by inode and first bytes."""
    inodes = planned.inodes.get(path)
    return (inodes is None or now.inode in inodes) and begins_with(now.head, planned.heads.get(path, ""))


def _programs(tree: ImageTree) -> frozenset[str]:
    """Return the paths of what the tree executes."""
    paths = {file.id: find_needed_path(file) for file in tree.regular_files}
    programs = set()
    for process in tree.processes:
        programs.add(paths.get(process.exe.id, "") if process.exe is not None else "")
        for vma in process.memory.vmas if process.memory is not None else ():
            if vma.prot & PROT_EXEC and vma.file_id is not None:
                programs.add(paths.get(vma.file_id, ""))
    return frozenset(programs - {""})
