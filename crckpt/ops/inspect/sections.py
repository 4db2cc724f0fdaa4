"""The sections of `crckpt show`: processes, files, sockets, maps, environments. Only environments read pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from crckpt.host.syscalls.ptrace_requests import call_name
from crckpt.images.core import read_system_call
from crckpt.images.tree import ImageTree
from crckpt.model import PAGE_SIZE
from crckpt.ops.context import Context
from crckpt.ops.inspect.descriptors import (
    FileSection,
    Holder,
    OpenFiles,
    SocketSection,
    file_section,
    open_files,
    socket_section,
)
from crckpt.ops.inspect.images import opened_checkpoint
from crckpt.ops.inspect.memory import Memory
from crckpt.store import Checkpoint, open_reader, read_file

if TYPE_CHECKING:
    from crckpt.store.read.reader import Reader

# Bytes that arguments and environment can have together: execve(2).
_MOST_ENVIRONMENT: Final = 6 << 20


class ThreadSection(Struct, frozen=True):
    """One thread, and the system call that it was in; empty if it was in none, or not on x86-64."""

    tid: int
    comm: str
    system_call: str


class ProcessSection(Struct, frozen=True):
    """One process. `state` is alive, stopped, zombie or unknown; `exit_code` is the wait status of a zombie."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    comm: str
    state: str
    exit_code: int
    uid: int | None
    gid: int | None
    exe: str
    cwd: str
    threads: tuple[ThreadSection, ...]


class MapSection(Struct, frozen=True):
    """One map: its addresses (`end` is not included) and its size.

    `dirty_bytes` are in memory or swap and in no file, so the checkpoint has them all. `resident_bytes` counts clean
    pages too; it is None for a mapped file, because CRIU does not record which pages of a file were in memory.
    """

    pid: int
    start: int
    end: int
    permissions: str
    kind: str
    path: str
    offset: int
    bytes: int
    dirty_bytes: int
    resident_bytes: int | None


class Environment(Struct, frozen=True):
    """The strings where a process has its environment, usually `NAME=VALUE`."""

    pid: int
    comm: str
    variables: tuple[str, ...]


class Sections(Struct, frozen=True):
    """The sections that the user asked for; the others are None."""

    checkpoint: Checkpoint
    ps: tuple[ProcessSection, ...] | None = None
    files: tuple[FileSection, ...] | None = None
    sockets: tuple[SocketSection, ...] | None = None
    maps: tuple[MapSection, ...] | None = None
    env: tuple[Environment, ...] | None = None


def sections(context: Context, ref: str, wanted: Collection[str]) -> Sections:
    """Read the `wanted` sections of a checkpoint, by the names of the fields of `Sections`.

    Environments may be secret. Raises NoSuchCheckpoint, IntegrityError.
    """
    with opened_checkpoint(context, ref) as (repository, checkpoint, tree):
        opened = open_files(tree)
        with open_reader(repository, checkpoint) as reading:
            found: dict[str, Iterator[Any]] = {
                "ps": _processes(tree, lambda name: read_file(repository, checkpoint, name)),
                "files": _files(tree, opened),
                "sockets": _sockets(tree, opened),
                "maps": _maps(reading, tree),
                "env": _environments(reading, tree),
            }
            return Sections(checkpoint, **{name: tuple(found[name]) for name in wanted})


def _processes(tree: ImageTree, read: Callable[[str], bytes]) -> Iterator[ProcessSection]:
    for process in tree.processes:
        threads = []
        for thread in process.threads:
            # The tree was read without registers: most commands need none.
            name = f"core-{thread.tid}.img"
            call = read_system_call(read(name), name)
            title = "" if call is None else call_name(call.number, thread.core.arch, is_native=call.is_native)
            threads.append(ThreadSection(thread.tid, thread.core.comm, title))
        credentials = process.core.credentials
        yield ProcessSection(
            pid=process.pid,
            ppid=process.ppid,
            pgid=process.pgid,
            sid=process.sid,
            comm=process.comm,
            state=process.state,
            exit_code=process.core.exit_code,
            uid=None if credentials is None else credentials.uid,
            gid=None if credentials is None else credentials.gid,
            exe="" if process.exe is None else process.exe.title,
            cwd="" if process.cwd is None else process.cwd.title,
            threads=tuple(threads),
        )


def _files(tree: ImageTree, files: OpenFiles) -> Iterator[FileSection]:
    for process in tree.processes:
        # CRIU lists them in the order in which it met the files.
        for descriptor in sorted(process.descriptors, key=lambda found: found.fd):
            yield file_section(process.pid, descriptor, files)


def _sockets(tree: ImageTree, files: OpenFiles) -> Iterator[SocketSection]:
    # Collect the holders of all sockets in one pass: each socket may be open in every process.
    holders: dict[int, list[Holder]] = {}
    for process in tree.processes:
        for descriptor in process.descriptors:
            holders.setdefault(descriptor.file.id, []).append(Holder(process.pid, descriptor.fd))
    for file in tree.files:
        found = socket_section(file, tuple(holders.get(file.id, ())), files)
        if found is not None:
            yield found


def _maps(reading: Reader, tree: ImageTree) -> Iterator[MapSection]:
    for process in tree.processes:
        for region in Memory(reading, process).regions:
            vma = region.vma
            yield MapSection(
                pid=process.pid,
                start=vma.start,
                end=vma.end,
                permissions=region.permissions,
                kind=vma.kind,
                path=region.path,
                offset=vma.pgoff,
                bytes=vma.size,
                dirty_bytes=region.dirty_pages * PAGE_SIZE,
                resident_bytes=None if region.resident_pages is None else region.resident_pages * PAGE_SIZE,
            )


def _environments(reading: Reader, tree: ImageTree) -> Iterator[Environment]:
    for process in tree.processes:
        if process.memory is None:
            continue
        # A program may have set these addresses to anything (PR_SET_MM).
        start, end = process.memory.env_start, process.memory.env_end
        content = Memory(reading, process).read(start, min(max(0, end - start), _MOST_ENVIRONMENT))
        variables = (entry.decode("utf-8", "surrogateescape") for entry in content.split(b"\0") if entry)
        yield Environment(process.pid, process.comm, tuple(variables))
