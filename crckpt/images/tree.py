"""The tree of processes in a set of images, with everything they had open or mapped.

`show` and the checks before a restore need nothing else of the images. No pages are read, and no content except that of
append-only ghosts, whose size is recorded nowhere else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import IntegrityError
from crckpt.images.core import ZOMBIE, Core, read_core
from crckpt.images.files import OpenFile, read_files, read_signal_owners
from crckpt.images.inventory import Inventory, read_inventory
from crckpt.images.mm import AddressSpace, Vma, read_mm
from crckpt.images.other_files import EventPoll, Fifo, MemFd, MemFdInode, read_memfd_inodes
from crckpt.images.processes import (
    LARGEST_PID,
    FileLock,
    KernelIds,
    ProcessEntry,
    read_descriptors,
    read_directories,
    read_ids,
    read_leases,
    read_locks,
    read_pstree,
)
from crckpt.images.regfile import GHOST, LINKED, RegularFile, ghost_image, read_ghost, read_remaps
from crckpt.images.sockets import InetSocket
from crckpt.images.tty import Terminal, TerminalInfo, read_terminals

# Processes may share a table, and images the pages of a store: few bytes can describe billions of descriptors. crckpt
# shows and checks each of them: a store of 150 KB kept `show` busy with 60 million for minutes.
MOST_DESCRIPTORS: Final = 1 << 22
"""The limit of descriptors for all processes together."""
_MOST_MAPS: Final = 1 << 22
_MOST_TASKS: Final = 1 << 20


_Value = TypeVar("_Value")


class Thread(Struct, frozen=True):
    """One thread of a process."""

    tid: int
    core: Core


class OpenDescriptor(Struct, frozen=True):
    """Descriptor number `fd` and its open file."""

    fd: int
    file: OpenFile
    close_on_exec: bool


class ImageProcess(Struct, frozen=True):
    """One process. A zombie has one thread and nothing open or mapped: `memory`, `exe`, `cwd`, `root`, `ids` are None.

    `mapped` has each file once, in the order of addresses. PIDs are those of the process's own PID namespace.
    """

    pid: int
    ppid: int
    pgid: int
    sid: int
    threads: tuple[Thread, ...]
    descriptors: tuple[OpenDescriptor, ...] = ()
    memory: AddressSpace | None = None
    mapped: tuple[OpenFile, ...] = ()
    exe: OpenFile | None = None
    cwd: OpenFile | None = None
    root: OpenFile | None = None
    ids: KernelIds | None = None

    @property
    def core(self) -> Core:
        """The state of its first thread, which has that of the process too."""
        return self.threads[0].core

    @property
    def comm(self) -> str:
        """Its name, up to 15 bytes."""
        return self.core.comm

    @property
    def state(self) -> str:
        """ALIVE, STOPPED or ZOMBIE, as in `core`."""
        return self.core.state


class ImageTree(Struct, frozen=True):
    """A set of images. `files`: all open and mapped files, each once, with remaps and paths resolved.

    `silent_leases`: PID and descriptor of leases whose signals nobody gets.

    The names that CRIU gave to deleted files for the restore are not among them: see `RegularFile.remap`.
    """

    inventory: Inventory
    processes: tuple[ImageProcess, ...]
    files: tuple[OpenFile, ...]
    terminals: tuple[TerminalInfo, ...]
    locks: tuple[FileLock, ...] = ()
    silent_leases: tuple[tuple[int, int], ...] = ()

    @property
    def root(self) -> ImageProcess:
        return self.processes[0]

    @property
    def users(self) -> frozenset[int]:
        """The real and effective user ids of its processes."""
        known = (process.core.credentials for process in self.processes)
        return frozenset(uid for each in known if each is not None for uid in (each.uid, each.euid))

    @property
    def regular_files(self) -> tuple[RegularFile, ...]:
        """Everything with a path that is open, mapped, executed, or a working or root directory."""
        return tuple(file for file in self.files if isinstance(file, RegularFile))

    @property
    def inet_sockets(self) -> tuple[InetSocket, ...]:
        """TCP, UDP, ICMP and raw sockets."""
        return tuple(file for file in self.files if isinstance(file, InetSocket))

    def is_apart(self, namespace: str) -> bool:
        """Return whether the root was in another namespace of this kind than the CRIU that dumped it."""
        ids = self.root.ids
        outside = self.inventory.root_ids.namespaces
        return ids is not None and getattr(ids.namespaces, namespace) != getattr(outside, namespace)

    @property
    def is_read_by_position(self) -> bool:
        """Whether CRIU needs the images as files, not as streams."""
        return any(vma.is_read_by_position for vma in self.vmas)

    @property
    def vmas(self) -> tuple[Vma, ...]:
        """The maps of all processes."""
        return tuple(vma for process in self.processes if process.memory is not None for vma in process.memory.vmas)

    @property
    def threads(self) -> tuple[Thread, ...]:
        """The threads of all processes."""
        return tuple(thread for process in self.processes for thread in process.threads)

    @property
    def polled(self) -> frozenset[int]:
        """The ids of files that an epoll watches."""
        found = set()
        for process in self.processes:
            numbers = {opened.fd: opened.file.id for opened in process.descriptors}
            for opened in process.descriptors:
                if isinstance(opened.file, EventPoll):
                    found |= {numbers[fd] for fd in opened.file.watched if fd in numbers}
        return frozenset(found)

    @property
    def groups(self) -> frozenset[int]:
        """The ids of the process groups in which its processes are."""
        return frozenset(process.pgid for process in self.processes)

    @property
    def established(self) -> tuple[InetSocket, ...]:
        """TCP connections: they need `--tcp-established` or `--tcp-close`."""
        return tuple(socket for socket in self.inet_sockets if socket.is_established_tcp)

    @property
    def inner_connections(self) -> tuple[InetSocket, ...]:
        """The ends of TCP connections whose other end is in the tree, too."""
        ends = {(each.source.ip, each.source.port) for each in self.established if each.source.ip}
        return tuple(each for each in self.established if (each.destination.ip, each.destination.port) in ends)


def read_tree(read: Callable[[str], bytes], names: Iterable[str]) -> ImageTree:
    """Read the tree from image files with these `names`; `read(name)` returns the bytes of one.

    Raises IntegrityError with the name of the image if one is missing or damaged, or if they contradict each other.
    """
    images = _Images(read, frozenset(names))
    try:
        inventory = images.decode(read_inventory, "inventory.img")
        files = _read_files(images)
        processes = tuple(_processes(images, files))
        if not processes:
            raise IntegrityError("pstree.img: has no process")
        terminals = images.decode_if_there(read_terminals, "tty-info.img") or ()
        locks = images.decode_if_there(read_locks, "filelocks.img") or ()
        if strangers := {lock.pid for lock in locks} - {process.pid for process in processes}:
            raise IntegrityError(f"filelocks.img: process {min(strangers)} has a lock but is not in pstree.img")
        silent = tuple(_find_silent_leases(images, processes))
        return ImageTree(inventory, processes, tuple(files.values()), terminals, locks, silent)
    # Images from elsewhere may be made up: what a decoder raises here means damage, not a bug of crckpt.
    except (ArithmeticError, LookupError, ValueError, RecursionError, struct.error) as error:
        raise IntegrityError(f"the images cannot be read: {type(error).__name__}: {error}") from error
    except MemoryError as error:
        raise IntegrityError("the tree that the images describe does not fit into memory") from error


class _Images(Struct, frozen=True):
    read: Callable[[str], bytes]
    names: frozenset[str]
    # msgspec makes a new dictionary for each instance.
    tables: dict[int, tuple[OpenDescriptor, ...]] = {}
    """The descriptor tables read so far: processes may share one (CLONE_FILES)."""

    def decode(self, read: Callable[[bytes, str], _Value], name: str) -> _Value:
        if name not in self.names:
            raise IntegrityError(f"{name} is missing")
        return read(self.read(name), name)

    def decode_if_there(self, read: Callable[[bytes, str], _Value], name: str) -> _Value | None:
        # CRIU writes no image without records (criu/image.c, open_image_lazy).
        return self.decode(read, name) if name in self.names else None


def _processes(images: _Images, files: dict[int, OpenFile]) -> Iterator[ImageProcess]:
    """Read each process. Raises IntegrityError as soon as the tree is larger than any host could have."""
    tasks = descriptors = maps = 0
    for entry in images.decode(read_pstree, "pstree.img"):
        # Count before reading the threads: each has an image.
        tasks += max(1, len(entry.threads))
        if tasks > _MOST_TASKS:
            raise IntegrityError(f"the images describe more than {_MOST_TASKS:,} threads")
        process = _process(images, files, entry)
        descriptors += len(process.descriptors)
        if descriptors > MOST_DESCRIPTORS:
            raise IntegrityError(f"the images describe more than {MOST_DESCRIPTORS:,} open descriptors")
        maps += len(process.memory.vmas) if process.memory is not None else 0
        if maps > _MOST_MAPS:
            raise IntegrityError(f"the images describe more than {_MOST_MAPS:,} memory maps")
        yield process


def _process(images: _Images, files: dict[int, OpenFile], entry: ProcessEntry) -> ImageProcess:
    leader = Thread(entry.pid, images.decode(read_core, f"core-{entry.pid}.img"))
    if leader.core.state == ZOMBIE:
        return ImageProcess(entry.pid, entry.ppid, entry.pgid, entry.sid, (leader,))
    if max(entry.threads, default=0) > LARGEST_PID:
        raise IntegrityError("pstree.img: a thread has an impossible id")
    tids = (tid for tid in entry.threads if tid != entry.pid)
    others = tuple(Thread(tid, images.decode(read_core, f"core-{tid}.img")) for tid in tids)
    ids = images.decode(read_ids, f"ids-{entry.pid}.img")
    memory = images.decode(read_mm, mm := f"mm-{entry.pid}.img")
    directories = images.decode(read_directories, fs := f"fs-{entry.pid}.img")
    mapped = dict.fromkeys(vma.file_id for vma in memory.vmas if vma.file_id is not None)
    return ImageProcess(
        pid=entry.pid,
        ppid=entry.ppid,
        pgid=entry.pgid,
        sid=entry.sid,
        threads=(leader, *others),
        descriptors=_descriptors(images, files, ids.files),
        memory=memory,
        mapped=tuple(_find(files, file_id, mm) for file_id in mapped),
        exe=_find(files, memory.exe_file_id, mm),
        cwd=_find(files, directories.cwd_id, fs),
        root=_find(files, directories.root_id, fs),
        ids=ids,
    )


def _descriptors(images: _Images, files: dict[int, OpenFile], table: int) -> tuple[OpenDescriptor, ...]:
    # CRIU writes no image for a process without descriptors.
    name = f"fdinfo-{table}.img"
    if table not in images.tables:
        images.tables[table] = tuple(
            OpenDescriptor(entry.fd, _find(files, entry.file_id, name), entry.close_on_exec)
            for entry in images.decode_if_there(read_descriptors, name) or ()
        )
    return images.tables[table]


def _find_silent_leases(images: _Images, processes: tuple[ImageProcess, ...]) -> Iterator[tuple[int, int]]:
    # Few trees have any: only then is it worth the time to look for the owners of all files.
    leases = frozenset(images.decode_if_there(read_leases, "filelocks.img") or ())
    if not leases:
        return
    owners = images.decode_if_there(lambda data, name: tuple(read_signal_owners(data, name)), "files.img") or ()
    owned = {owner.file_id for owner in owners}
    for process in processes:
        for opened in process.descriptors:
            if (process.pid, opened.fd) in leases and opened.file.id not in owned:
                yield process.pid, opened.fd


def _read_files(images: _Images) -> dict[int, OpenFile]:
    """Read all files by id, with remaps and paths resolved."""
    files: dict[int, OpenFile] = {}
    for file in images.decode_if_there(read_files, "files.img") or ():
        if files.setdefault(file.id, file) != file:
            # CRIU might open one of them, while crckpt shows the other.
            raise IntegrityError(f"files.img: two different files have the id {file.id}")
    name = "remap-fpath.img"
    remaps = images.decode_if_there(read_remaps, name) or {}
    for file_id, remap in remaps.items():
        gone = _regular(files, file_id, name)
        if remap.kind == LINKED:
            found = replace(remap, path=_regular(files, remap.target, name).path)
        elif remap.kind == GHOST:
            # The file's entry has its size, unless it is append-only or not regular.
            size = gone.size if gone.size is not None else images.decode(read_ghost, ghost_image(remap.target)).size
            found = replace(remap, size=size)
        else:
            found = remap
        files[file_id] = replace(gone, remap=found)
    inodes = {inode.id: inode for inode in images.decode_if_there(read_memfd_inodes, "memfd.img") or ()}
    # CRIU made these names for the restore; the program never had them.
    links = {remap.target for remap in remaps.values() if remap.kind == LINKED}
    return {file_id: _with_name(files, inodes, file) for file_id, file in files.items() if file_id not in links}


def _with_name(files: dict[int, OpenFile], inodes: dict[int, MemFdInode], file: OpenFile) -> OpenFile:
    if isinstance(file, Fifo | Terminal) and file.file_id is not None:
        return replace(file, path=_regular(files, file.file_id, "files.img").path)
    if isinstance(file, MemFd):
        if file.inode_id not in inodes:
            raise IntegrityError(f"memfd.img: inode {file.inode_id} is missing")
        inode = inodes[file.inode_id]
        return replace(file, name=inode.name, size=inode.size, shmid=inode.shmid)
    return file


def _find(files: dict[int, OpenFile], file_id: int, where: str) -> OpenFile:
    if file_id not in files:
        raise IntegrityError(f"{where}: refers to file {file_id}, which is not in files.img")
    return files[file_id]


def _regular(files: dict[int, OpenFile], file_id: int, where: str) -> RegularFile:
    file = _find(files, file_id, where)
    if not isinstance(file, RegularFile):
        raise IntegrityError(f"{where}: file {file_id} is a {file.kind} instead of a file with a path")
    return file
