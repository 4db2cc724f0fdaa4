"""Rights and files that the check has compared, compared again while the tree is frozen: they may have changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import cause
from crckpt.errors import KEEPS_RUNNING, PreflightRefused, error_text
from crckpt.host.disk.checked_files import read_digest, regular_opened
from crckpt.host.proc import procfs
from crckpt.host.proc.fd import read_link
from crckpt.host.proc.file_users import list_writable
from crckpt.host.proc.status import read_status
from crckpt.host.steps import step
from crckpt.migrate.preflight.asked_files import LARGEST_READ, NAMELESS, find_shared_file_systems, limit_time
from crckpt.migrate.preflight.judge_files import find_cause_of_writing
from crckpt.migrate.preflight.questions import AskedFile

Right: TypeAlias = tuple[Literal["user", "group"], int]

_ROOT: Final = "0"


def read_rights(pids: Iterable[int]) -> frozenset[Right]:
    """Read the users and groups of all threads, without those that are or can become root: these need no more."""
    found: set[Right] = set()
    for pid in pids:
        for tid in procfs.living_threads(pid):
            with suppress(OSError):
                status = read_status(pid, tid)
                # Real, effective, saved, and that of the file system: a process may take on each of the first three.
                users = status.get("Uid", "").split()
                if _ROOT not in users:
                    groups = (word for key in ("Gid", "Groups") for word in status.get(key, "").split())
                    found |= {("user", int(number)) for number in users} | {("group", int(word)) for word in groups}
    return frozenset(found)


def refuse_new_rights(root: int, compared: frozenset[Right]) -> None:
    """Raise PreflightRefused if a frozen tree has rights that were not compared: a set-user-id program, newgrp(1)."""
    new = sorted(read_rights(find_frozen(root)) - compared)
    if new:
        kind, number = new[0]
        raise PreflightRefused(
            f"the program has taken the rights of {kind} {number} since the check",
            state="it keeps running here",
            hint="run the command again: crckpt compares the names on both hosts first",
        )


def find_frozen(pid: int) -> Iterator[int]:
    """Find the processes of a frozen tree. In others the kernel's list of children may miss some (proc(5))."""
    yield pid
    for tid in procfs.living_threads(pid):
        with suppress(OSError):
            for child in procfs.text(f"/proc/{pid}/task/{tid}/children").split():
                yield from find_frozen(int(child))


_OF_THE_KERNEL: Final = (*NAMELESS, "/sys/")


class ComparedFiles(Struct, frozen=True):
    """What the check has compared.

    - `files`: the other host has a copy of each
    - `names`: of all files that were asked about, by device and inode
    - `shared`: devices of files that both hosts share
    """

    files: tuple[AskedFile, ...] = ()
    names: dict[tuple[int, int], frozenset[str]] = {}
    shared: frozenset[int] = frozenset()


def select_compared(files: Iterable[AskedFile], shared: Iterable[int], sent: Iterable[int]) -> ComparedFiles:
    """Select what to compare again: not files that both hosts share, nor logs that are sent, by their ids."""
    files, shared, others = tuple(files), frozenset(shared), frozenset((*shared, *sent))
    names: dict[tuple[int, int], frozenset[str]] = {}
    for file in files:
        key = (file.device, file.inode)
        names[key] = names.get(key, frozenset()) | {file.name}
    copied = (
        file
        for file in files
        if stat.S_ISREG(file.mode) and not (file.removed or file.build_id or file.name.startswith(_OF_THE_KERNEL))
    )
    return ComparedFiles(
        tuple(file for file in copied if file.id not in others),
        names,
        frozenset(file.device for file in files if file.id in shared),
    )


def refuse_changed_files(
    pids: Iterable[int],
    compared: ComparedFiles,
    compare: Callable[[tuple[AskedFile, ...]], Container[int]] = lambda _: (),
) -> None:
    """Raise PreflightRefused if the other host lacks what a frozen tree has written since the check.

    Unless a map is written, size and times tell; else, and if they differ, the content does. `compare` asks the other
    host about files that have changed: it may have mounted the same storage.
    """
    changes = {file.id: change for file in compared.files if (change := _find_change(file)) is not None}
    files = tuple(now for _, now in changes.values() if now is not None)
    same = compare(files) if files else ()
    for file in compared.files:
        if file.id in changes and file.id not in same:
            again = "run the command again"
            hint = cause(find_cause_of_writing(file)).finding().remedy if file.is_written else again
            raise _refuse(file.name, changes[file.id][0], hint)
    shared = compared.shared | find_shared_file_systems().keys()
    for name, identity in _list_written(pids):
        if identity[0] not in shared and name not in compared.names.get(identity, ()):
            what = "was renamed" if identity in compared.names else "was opened for writing"
            raise _refuse(name, what, "run the command again")


def _refuse(name: str, change: str, hint: str) -> PreflightRefused:
    return PreflightRefused(f"{name} {change} since the check", state=KEEPS_RUNNING, hint=hint)


def _find_change(file: AskedFile) -> tuple[str, AskedFile | None] | None:
    """Find how a file has changed since the questions, and as what it is there now; None if its content is the same."""
    try:
        status = Path(file.name).stat()
    except FileNotFoundError:
        return ("was removed or renamed", None) if file.is_written else None
    except OSError as error:
        return f"cannot be compared again ({error_text(error)})", None
    is_same_file = (status.st_dev, status.st_ino) == (file.device, file.inode)
    times = limit_time(status.st_mtime_ns), limit_time(status.st_ctime_ns)
    if is_same_file and not file.is_mapped and (status.st_size, *times) == (file.size, file.modified, file.changed):
        return None
    digest = ""
    with suppress(OSError), regular_opened(file.name) as descriptor:
        if file.digest and descriptor is not None:
            # Other hosts see its content then.
            step("compare.sync", file.name)
            os.fsync(descriptor)
            digest = read_digest(descriptor, status.st_size) if status.st_size <= LARGEST_READ else ""
    if digest and digest == file.digest:
        return None
    now = replace(file, size=status.st_size, modified=times[0], digest=digest)
    return "was written to" if is_same_file else "was replaced", now


def _list_written(pids: Iterable[int]) -> Iterator[tuple[str, tuple[int, int]]]:
    for pid in pids:
        for link in list_writable(pid):
            name, status = read_link(link) or ("", None)
            has_name = name.startswith("/") and not name.startswith(_OF_THE_KERNEL)
            if status is not None and has_name and stat.S_ISREG(status.st_mode) and status.st_nlink:
                yield name, (status.st_dev, status.st_ino)
