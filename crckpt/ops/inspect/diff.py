"""What differs between two checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from crckpt.images.regfile import RegularFile
from crckpt.images.sockets import InetSocket, UnixSocket
from crckpt.images.tree import OpenDescriptor, Process
from crckpt.ops.context import Context
from crckpt.ops.inspect.sections import (
    FileSection,
    Holder,
    OpenFiles,
    SocketSection,
    file_section,
    is_socket,
    open_files,
    socket_section,
)
from crckpt.store import Checkpoint, reader

if TYPE_CHECKING:
    from crckpt.ops.inspect.page_changes import MapChange, PageCounts
    from crckpt.store.read.reading import Reader


class Named(Struct, frozen=True):
    """A process that only one of the checkpoints has, and how many pages that holds of its maps."""

    pid: int
    comm: str
    pages: int


class Opened(Struct, frozen=True):
    """Files and sockets that one checkpoint has and the other lacks."""

    files: tuple[FileSection, ...] = ()
    sockets: tuple[SocketSection, ...] = ()


class Facts(Struct, frozen=True):
    """What a process may change of itself."""

    comm: str
    state: str
    ppid: int
    exe: str


class ProcessChange(Struct, frozen=True):
    """One process that both checkpoints have, and in which something differs."""

    pid: int
    comm: str
    before: Facts
    after: Facts
    threads_come: tuple[int, ...]
    threads_gone: tuple[int, ...]
    opened: Opened
    closed: Opened
    maps: tuple[MapChange, ...]
    pages: PageCounts


class Difference(Struct, frozen=True):
    """From `first` to `second`. `pages` are those of `changed` together; shared memory counts in each process."""

    first: Checkpoint
    second: Checkpoint
    come: tuple[Named, ...]
    gone: tuple[Named, ...]
    changed: tuple[ProcessChange, ...]
    pages: PageCounts


def diff(context: Context, first: str, second: str) -> Difference:
    """Compare two checkpoints of a store; processes are the same that have the same PID and run the same program.

    Pages are read only where the two have them in different places of the store. Takes bounded memory. Raises
    NoSuchCheckpoint, IntegrityError.
    """
    from crckpt.ops.inspect.images import read_image_tree
    from crckpt.ops.inspect.memory import Memory
    from crckpt.ops.inspect.page_changes import PageCounts, Side, page_changes

    repository = context.repository()
    with repository.shared():
        one, two = (repository.get(repository.resolve(ref)) for ref in (first, second))
        before, after = (read_image_tree(repository, checkpoint) for checkpoint in (one, two))
        old, new = ({process.pid: process for process in tree.processes} for tree in (before, after))
        files = open_files(before), open_files(after)
        changed = []
        with reader(repository, one) as reading_one, reader(repository, two) as reading_two:
            both = [pid for pid in new if pid in old and _is_same(old[pid], new[pid])]
            for pid in both:
                maps = page_changes(Side(one, Memory(reading_one, old[pid])), Side(two, Memory(reading_two, new[pid])))
                change = _change(old[pid], new[pid], files, maps)
                if change is not None:
                    changed.append(change)
            come = tuple(_named(reading_two, process) for pid, process in new.items() if pid not in both)
            gone = tuple(_named(reading_one, process) for pid, process in old.items() if pid not in both)
    return Difference(
        first=one,
        second=two,
        come=come,
        gone=gone,
        changed=tuple(changed),
        pages=sum((change.pages for change in changed), PageCounts()),
    )


def _is_same(old: Process, new: Process) -> bool:
    """Whether a PID still means the process it meant, and the program that it ran.

    The images have no start times, and a restore gives new ones. But the kernel draws the addresses of a program anew
    at each start, and a restore brings them back.
    """
    if old.memory is None or new.memory is None:
        return new.memory is None  # Processes become zombies, and zombies nothing else.
    one, other = (
        (space.start_code, space.end_code, space.start_brk, space.start_stack) for space in (old.memory, new.memory)
    )
    return one == other


def _named(reading: Reader, process: Process) -> Named:
    from crckpt.ops.inspect.memory import Memory

    return Named(process.pid, process.comm, sum(region.pages for region in Memory(reading, process).regions))


def _change(
    old: Process, new: Process, files: tuple[OpenFiles, OpenFiles], maps: tuple[MapChange, ...]
) -> ProcessChange | None:
    """None if nothing differs."""
    from crckpt.ops.inspect.page_changes import PageCounts

    threads = [{thread.tid for thread in process.threads} for process in (old, new)]
    change = ProcessChange(
        pid=new.pid,
        comm=new.comm,
        before=_facts(old),
        after=_facts(new),
        threads_come=tuple(sorted(threads[1] - threads[0])),
        threads_gone=tuple(sorted(threads[0] - threads[1])),
        opened=_only(new, old, files[1]),
        closed=_only(old, new, files[0]),
        maps=maps,
        pages=sum((row.pages for row in maps), PageCounts()),
    )
    differs = change.before != change.after or change.threads_come or change.threads_gone or maps
    descriptors = (*change.opened.files, *change.opened.sockets, *change.closed.files, *change.closed.sockets)
    return change if differs or descriptors else None


def _facts(process: Process) -> Facts:
    return Facts(process.comm, process.state, process.ppid, "" if process.exe is None else process.exe.title)


def _only(process: Process, other: Process, files: OpenFiles) -> Opened:
    """The descriptors that a process has and the other lacks."""
    if process.descriptors == other.descriptors:
        return Opened()
    lacks = {_identity(descriptor) for descriptor in other.descriptors}
    mine = sorted((found for found in process.descriptors if _identity(found) not in lacks), key=lambda found: found.fd)
    sockets = (socket_section(found.file, (Holder(process.pid, found.fd),), files) for found in mine)
    return Opened(
        files=tuple(file_section(process.pid, found, files) for found in mine if not is_socket(found.file)),
        sockets=tuple(socket for socket in sockets if socket is not None),
    )


def _identity(descriptor: OpenDescriptor) -> tuple[int, str, str]:
    """A socket stays the same when its state changes. Pipes and nameless sockets are known by their inodes."""
    file = descriptor.file
    if isinstance(file, InetSocket):
        return descriptor.fd, file.kind, f"{file.protocol} {file.source} {file.destination}"
    if isinstance(file, UnixSocket):
        return descriptor.fd, file.kind, f"{file.type} {file.name or file.inode}"
    if isinstance(file, RegularFile):
        return descriptor.fd, file.kind, file.path
    return descriptor.fd, file.kind, file.title
