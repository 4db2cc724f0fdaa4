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
from crckpt.images.mm import FILE_SHARED, PROT_EXEC, PROT_WRITE
from crckpt.images.other_files import Fifo, Watch
from crckpt.images.regfile import LINKED, RegularFile
from crckpt.images.tree import ImageTree
from crckpt.images.tty import Terminal
from crckpt.model import utc_datetime
from crckpt.preflight.restore.host import FileState, Grown, HostState, PlannedRestore

if TYPE_CHECKING:
    from crckpt.host.proc.file_users import FileWriter

_HARMLESS = ("file-written", "log-kept", "log-appended")

_KINDS = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "directory",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
}


def judge_files(planned: PlannedRestore, host: HostState) -> Iterator[Finding]:
    """Compare every file that the tree needs with the file of this host; find watched paths that are missing."""
    uses, facts = file_uses(planned.tree), read_file_facts(planned.tree)
    for file in find_needed_files(planned.tree):
        path = find_needed_path(file)
        here = host.files.get(path)
        if here is not None and here.is_redirected:
            yield cause("open-linked").finding(path=path.lstrip("/"))
        else:
            yield from check_file(planned, file, host, uses.get(file.id, "opened"), facts)
    watched = (path for path in find_watched_paths(planned.tree) if path in host.unwatched)
    yield from (cause("watch-gone").finding(path=path) for path in watched)


def find_watched_paths(tree: ImageTree) -> tuple[str, ...]:
    """Return the paths that a restore watches again. None for a tree that brings its own mount namespace."""
    if tree.is_apart("mnt"):
        return ()
    return tuple(dict.fromkeys(path for file in tree.files if isinstance(file, Watch) for path in file.paths))


def find_changed_paths(planned: PlannedRestore, host: HostState) -> tuple[str, ...]:
    """Return the paths of changed files that prevent a restore or would be cut back."""
    facts = read_file_facts(planned.tree)
    return tuple(
        find_needed_path(file)
        for file in find_needed_files(planned.tree)
        if any(found.key not in _HARMLESS for found in check_file(planned, file, host, "opened", facts))
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
            # The path of a named pipe, or of a terminal, is that of another file.
            behind = descriptor.file.file_id if isinstance(descriptor.file, Fifo | Terminal) else None
            for file_id in (descriptor.file.id, *(() if behind is None else (behind,))):
                uses.setdefault(file_id, f"fd {descriptor.fd} of {name}")
        for mapped in process.mapped:
            uses.setdefault(mapped.id, f"mapped by {name}")
        for place, what in ((process.exe, "program"), (process.cwd, "directory"), (process.root, "root directory")):
            if place is not None:
                uses.setdefault(place.id, f"{what} of {name}")
    return uses


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
    paths = {file.id: find_needed_path(file) for file in tree.regular_files}
    executed = {process.exe.id for process in tree.processes if process.exe is not None}
    executed |= {vma.file_id for vma in tree.vmas if vma.prot & PROT_EXEC and vma.file_id is not None}
    programs = frozenset(paths.get(number, "") for number in executed) - {""}
    return FileFacts(programs, ends, frozenset(written), frozenset(written - read - others), frozenset(logs))


def find_shared_maps(tree: ImageTree) -> frozenset[int]:
    """Return the ids of the files to which the tree writes through maps."""
    written = (vma for vma in tree.vmas if vma.status & FILE_SHARED and vma.prot & PROT_WRITE)
    return frozenset(vma.file_id for vma in written if vma.file_id is not None)


def find_unsized(tree: ImageTree, grown: Grown) -> frozenset[int]:
    """Return the ids of files of which CRIU must not compare the size: logs that stay as they are."""
    logs = read_file_facts(tree).logs if grown == "keep" else frozenset()
    return frozenset(file.id for file in tree.regular_files if find_needed_path(file) in logs)


def check_file(
    planned: PlannedRestore, file: RegularFile, host: HostState, use: str, facts: FileFacts
) -> Iterator[Finding]:
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
        yield finding("file-upgraded", package=package.name, version=package.version, since=since, **before)
        return
    if now is None:
        owner = next(iter(planned.owners.get(path, ())), None)
        more = {"mode": f"{(file.mode or 0) & 0o7777:04o}", "owner": owner, "origin": file.path}
        yield finding(_find_missing_key(file, facts, is_owned=owner is not None), **more)
        return
    if file.mode is not None and stat.S_IFMT(file.mode) != stat.S_IFMT(now.mode):
        yield finding("file-kind", was=_kind(file.mode), now=_kind(now.mode))
        return
    # CRIU compares the mode of a file, except of one that it makes again.
    if file.mode is not None and file.mode != now.mode and file.remap is None:
        yield finding("file-mode", mode=f"{file.mode & 0o7777:04o}", now=f"{now.mode & 0o7777:04o}")
    if not stat.S_ISREG(now.mode):
        return
    size, appended = file.size, planned.append_sizes.get(path)
    # Each append moves the position to the file's end. Of several descriptors, the last to write stands there.
    size = size if appended is None or size is not None else max(appended, facts.ends.get(path, 0))
    # What a tree that keeps running writes is no reason.
    is_longer = size is not None and planned.still_runs and file.is_writable and size < now.size
    is_resized = size not in (None, now.size) and not is_longer
    # Compare the build before the size: a longer build of a library must not be cut back.
    if file.build_id and file.build_id != now.build_id and (now.build_id or is_resized):
        yield finding("file-replaced", build_id=file.build_id)
    elif size is not None and is_resized:
        writer = host.writers.get(path)
        key = _find_resized_key(planned, path, now, size, writer, facts)
        named = {"comm": writer.comm, "writer": writer.pid} if writer else {}
        yield finding(key, size=size, now=now.size, **named)
    # When it was written last before the checkpoint, as far as that is known: a file server's clock is not ours.
    elif now.written > (utc_datetime(planned.times[path]) if path in planned.times else planned.created):
        is_allowed = planned.written == "keep" or planned.still_runs or planned.is_rehearsal
        key = "file-written" if is_allowed or path not in facts.written else "data-written"
        yield finding(key, when=_local_time(now.written))


def _local_time(when: datetime) -> str:
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "file of another kind")


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
    # Whether it is the file of the checkpoint, as far as that is known: by inode and first bytes.
    is_same = now.inode in planned.inodes.get(path, {now.inode}) and begins_with(now.head, planned.heads.get(path, ""))
    is_log = path in facts.logs
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
