"""Compare two checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from crckpt.images.regfile import RegularFile
from crckpt.images.sockets import InetSocket, UnixSocket
from crckpt.images.tree import ImageProcess, OpenDescriptor
from crckpt.ops.context import Context
from crckpt.ops.inspect.descriptors import (
    FileSection,
    Holder,
    OpenFiles,
    SocketSection,
    file_section,
    is_socket,
    open_files,
    socket_section,
)
from crckpt.ops.inspect.images import read_image_tree
from crckpt.ops.inspect.memory import Memory
from crckpt.ops.inspect.page_changes import MapChange, PageChanges, number_packs, page_changes
from crckpt.store import Checkpoint, open_reader

if TYPE_CHECKING:
    from crckpt.store.read.reader import Reader


class UnmatchedProcess(Struct, frozen=True):
    """A process that only one of the checkpoints has. `pages` is how many pages of it the checkpoint has."""

    pid: int
    comm: str
    pages: int


class DescriptorChange(Struct, frozen=True):
    """Files and sockets that a process has open in one of the checkpoints only."""

    files: tuple[FileSection, ...] = ()
    sockets: tuple[SocketSection, ...] = ()


class ProcessFacts(Struct, frozen=True):
    """The facts that a process may change about itself."""

    comm: str
    state: str
    ppid: int
    exe: str


class ProcessChange(Struct, frozen=True):
    """A process that both checkpoints have, and that differs."""

    pid: int
    comm: str
    before: ProcessFacts
    after: ProcessFacts
    threads_come: tuple[int, ...]
    threads_gone: tuple[int, ...]
    opened: DescriptorChange
    closed: DescriptorChange
    maps: tuple[MapChange, ...]
    pages: PageChanges


class CheckpointDiff(Struct, frozen=True):
    """The differences from `first` to `second`. `pages` sums up `changed`; shared memory counts in each process."""

    first: Checkpoint
    second: Checkpoint
    come: tuple[UnmatchedProcess, ...]
    gone: tuple[UnmatchedProcess, ...]
    changed: tuple[ProcessChange, ...]
    pages: PageChanges


def diff(context: Context, first: str, second: str) -> CheckpointDiff:
    """Compare two checkpoints of a store. A process is the same in both if PID and program are the same.

    It reads only those pages that the two have in different places of the store, and takes bounded memory. Raises
    NoSuchCheckpoint, IntegrityError.
    """
    repository = context.repository()
    with repository.shared():
        one, two = (repository.get(repository.resolve(ref)) for ref in (first, second))
        before, after = (read_image_tree(repository, checkpoint) for checkpoint in (one, two))
        old, new = ({process.pid: process for process in tree.processes} for tree in (before, after))
        files = open_files(before), open_files(after)
        numbers = number_packs(one, two)
        changed = []
        with open_reader(repository, one) as reading_one, open_reader(repository, two) as reading_two:
            # If another program has the PID, the old process has gone and a new one has come.
            both = [pid for pid in new if pid in old and _is_same(old[pid], new[pid])]
            for pid in both:
                maps = page_changes(Memory(reading_one, old[pid]), Memory(reading_two, new[pid]), numbers)
                change = _change(old[pid], new[pid], files, maps)
                if change is not None:
                    changed.append(change)
            come = tuple(_describe_unmatched(reading_two, process) for pid, process in new.items() if pid not in both)
            gone = tuple(_describe_unmatched(reading_one, process) for pid, process in old.items() if pid not in both)
    return CheckpointDiff(
        first=one,
        second=two,
        come=come,
        gone=gone,
        changed=tuple(changed),
        pages=sum((change.pages for change in changed), PageChanges()),
    )


def _is_same(old: ImageProcess, new: ImageProcess) -> bool:
    """Return whether a PID names the same process, running the same program, in both checkpoints."""
    # The images have no start times, and a restore changes them. But the kernel draws new addresses for a program at
    # each start, and a restore keeps them.
    if old.memory is None or new.memory is None:
        return new.memory is None  # a process may become a zombie, but not the other way round
    one, other = (
        (space.start_code, space.end_code, space.start_brk, space.start_stack) for space in (old.memory, new.memory)
    )
    return one == other


def _describe_unmatched(reading: Reader, process: ImageProcess) -> UnmatchedProcess:
    return UnmatchedProcess(process.pid, process.comm, sum(region.pages for region in Memory(reading, process).regions))


def _change(
    old: ImageProcess, new: ImageProcess, files: tuple[OpenFiles, OpenFiles], maps: tuple[MapChange, ...]
) -> ProcessChange | None:
    """Compare the two states of a process; None if nothing differs."""
    before, after = (
        ProcessFacts(process.comm, process.state, process.ppid, "" if process.exe is None else process.exe.title)
        for process in (old, new)
    )
    threads = [{thread.tid for thread in process.threads} for process in (old, new)]
    change = ProcessChange(
        pid=new.pid,
        comm=new.comm,
        before=before,
        after=after,
        threads_come=tuple(sorted(threads[1] - threads[0])),
        threads_gone=tuple(sorted(threads[0] - threads[1])),
        opened=_only(new, old, files[1]),
        closed=_only(old, new, files[0]),
        maps=maps,
        pages=sum((row.pages for row in maps), PageChanges()),
    )
    differs = before != after or change.threads_come or change.threads_gone or maps
    descriptors = (*change.opened.files, *change.opened.sockets, *change.closed.files, *change.closed.sockets)
    return change if differs or descriptors else None


def _only(process: ImageProcess, other: ImageProcess, files: OpenFiles) -> DescriptorChange:
    """The descriptors that `process` has and `other` lacks."""
    if process.descriptors == other.descriptors:  # usually so, and a process may have 20,000
        return DescriptorChange()
    lacks = {_identity(descriptor) for descriptor in other.descriptors}
    mine = sorted((found for found in process.descriptors if _identity(found) not in lacks), key=lambda found: found.fd)
    sockets = (socket_section(found.file, (Holder(process.pid, found.fd),), files) for found in mine)
    return DescriptorChange(
        files=tuple(file_section(process.pid, found, files) for found in mine if not is_socket(found.file)),
        sockets=tuple(socket for socket in sockets if socket is not None),
    )


def _identity(descriptor: OpenDescriptor) -> tuple[int, str, str]:
    """Return what identifies a descriptor: for sockets not their state; for pipes and nameless sockets their inode."""
    # Not the file's id: CRIU numbers files anew in each dump.
    file = descriptor.file
    if isinstance(file, InetSocket):
        return descriptor.fd, file.kind, f"{file.protocol} {file.source} {file.destination}"
    if isinstance(file, UnixSocket):
        return descriptor.fd, file.kind, f"{file.type} {file.name or file.inode}"
    if isinstance(file, RegularFile):
        return descriptor.fd, file.kind, file.path
    return descriptor.fd, file.kind, file.title
