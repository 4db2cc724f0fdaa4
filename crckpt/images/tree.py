"""The tree of processes in a set of images, with everything they had open or mapped.

`show` and the checks before a restore need nothing else of the images. No pages are read, and no content except that of
append-only ghosts, whose size is recorded nowhere else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import IntegrityError
from crckpt.images.core import ZOMBIE, Core, read_core
from crckpt.images.fdinfo import Directories, read_descriptors, read_directories
from crckpt.images.filelocks import FileLock, read_locks
from crckpt.images.files import OpenFile, read_files
from crckpt.images.ids import KernelIds, read_ids
from crckpt.images.inventory import Inventory, read_inventory
from crckpt.images.mm import AddressSpace, Vma, read_mm
from crckpt.images.other_files import EventPoll, MemFd, read_memfd_inodes
from crckpt.images.pipes import Fifo
from crckpt.images.pstree import LARGEST_PID, ProcessEntry, read_pstree
from crckpt.images.regfile import GHOST, LINKED, RegularFile, Remap, ghost_image, read_ghost, read_remaps
from crckpt.images.sockets import InetSocket
from crckpt.images.tty import Terminal, TerminalInfo, read_terminals

# Processes may share a table, and images the pages of a store: few bytes can describe billions of descriptors. crckpt
# shows and checks each of them: a store of 150 KB kept `show` busy with 60 million for minutes.
MOST_DESCRIPTORS: Final = 1 << 22
"""The limit of descriptors for all processes together."""
_MOST_MAPS: Final = 1 << 22
_MOST_TASKS: Final = 1 << 20


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

    The names that CRIU gave to deleted files for the restore are not among them: see `RegularFile.remap`.
    """

    inventory: Inventory
    processes: tuple[ImageProcess, ...]
    files: tuple[OpenFile, ...]
    terminals: tuple[TerminalInfo, ...]
    locks: tuple[FileLock, ...] = ()

    @property
    def root(self) -> ImageProcess:
        """The process at the top."""
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
    def listening(self) -> tuple[InetSocket, ...]:
        """TCP sockets that accept connections: their addresses must be free at a restore."""
        return tuple(socket for socket in self.inet_sockets if socket.is_listening)

    @property
    def groups(self) -> frozenset[int]:
        """The ids of the process groups in which its processes are."""
        return frozenset(process.pgid for process in self.processes)

    @property
    def established(self) -> tuple[InetSocket, ...]:
        """TCP connections: they need `--tcp-established` or `--tcp-close`."""
        return tuple(socket for socket in self.inet_sockets if socket.is_established_tcp)


def read_tree(read: Callable[[str], bytes], names: Iterable[str]) -> ImageTree:
    """Read the tree from image files with these `names`; `read(name)` returns the bytes of one.

    Raises IntegrityError with the name of the image if one is missing or damaged, or if they contradict each other.
    """
    images = _Images(read, frozenset(names))
    try:
        return _tree(images)
    # Images from elsewhere may be made up: what a decoder raises here means damage, not a bug of crckpt.
    except (ArithmeticError, LookupError, ValueError, RecursionError, struct.error) as error:
        raise IntegrityError(f"the images cannot be read: {type(error).__name__}: {error}") from error
    except MemoryError as error:
        raise IntegrityError("the tree that the images describe does not fit into memory") from error


def _tree(images: _Images) -> ImageTree:
    inventory = read_inventory(images.bytes_of("inventory.img"))
    files = _resolve(images, _read_files(images))
    processes = tuple(_processes(images, files))
    if not processes:
        raise IntegrityError("pstree.img: has no process")
    terminals = read_terminals(images.bytes_of("tty-info.img")) if "tty-info.img" in images.names else ()
    locks = read_locks(images.bytes_of("filelocks.img")) if "filelocks.img" in images.names else ()
    if strangers := {lock.pid for lock in locks} - {process.pid for process in processes}:
        raise IntegrityError(f"filelocks.img: process {min(strangers)} has a lock but is not in pstree.img")
    return ImageTree(inventory, processes, tuple(files.values()), terminals, locks)


def _processes(images: _Images, files: dict[int, OpenFile]) -> Iterator[ImageProcess]:
    """Read each process. Raises IntegrityError as soon as the tree is larger than any host could have."""
    tasks = descriptors = maps = 0
    for entry in read_pstree(images.bytes_of("pstree.img")):
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


class _Images(Struct, frozen=True):
    read: Callable[[str], bytes]
    names: frozenset[str]
    # msgspec makes a new dictionary for each instance.
    tables: dict[int, tuple[OpenDescriptor, ...]] = {}
    """The descriptor tables read so far: processes may share one (CLONE_FILES)."""

    def bytes_of(self, name: str) -> bytes:
        if name not in self.names:
            raise IntegrityError(f"{name} is missing")
        return self.read(name)


def _read_files(images: _Images) -> dict[int, OpenFile]:
    # CRIU writes no image without records (criu/image.c, open_image_lazy).
    if "files.img" not in images.names:
        return {}
    files: dict[int, OpenFile] = {}
    for file in read_files(images.bytes_of("files.img")):
        if files.setdefault(file.id, file) != file:
            # CRIU might open one of them, while crckpt shows the other.
            raise IntegrityError(f"files.img: two different files have the id {file.id}")
    return files


def _resolve(images: _Images, files: dict[int, OpenFile]) -> dict[int, OpenFile]:
    remaps = read_remaps(images.bytes_of("remap-fpath.img")) if "remap-fpath.img" in images.names else {}
    for file_id, remap in remaps.items():
        file = _regular(files, file_id, "remap-fpath.img")
        files[file_id] = replace(file, remap=_complete(images, files, file, remap))
    inodes = _memfd_inodes(images)
    # CRIU made these names for the restore; the program never had them.
    links = {remap.target for remap in remaps.values() if remap.kind == LINKED}
    return {file_id: _name(files, inodes, file) for file_id, file in files.items() if file_id not in links}


def _complete(images: _Images, files: dict[int, OpenFile], file: RegularFile, remap: Remap) -> Remap:
    if remap.kind == LINKED:
        return replace(remap, path=_regular(files, remap.target, "remap-fpath.img").path)
    if remap.kind == GHOST:
        return replace(remap, size=_ghost_size(images, file, remap))
    return remap


def _ghost_size(images: _Images, file: RegularFile, remap: Remap) -> int:
    # The file's entry has its size, unless it is append-only or not regular.
    if file.size is not None:
        return file.size
    name = ghost_image(remap.target)
    return read_ghost(images.bytes_of(name), name).size


def _memfd_inodes(images: _Images) -> dict[int, tuple[str, int, int]]:
    if "memfd.img" not in images.names:
        return {}
    inodes = read_memfd_inodes(images.bytes_of("memfd.img"))
    return {inode.id: (inode.name, inode.size, inode.shmid) for inode in inodes}


def _name(files: dict[int, OpenFile], inodes: dict[int, tuple[str, int, int]], file: OpenFile) -> OpenFile:
    if isinstance(file, Fifo | Terminal) and file.file_id is not None:
        return replace(file, path=_regular(files, file.file_id, "files.img").path)
    if isinstance(file, MemFd):
        if file.inode_id not in inodes:
            raise IntegrityError(f"memfd.img: inode {file.inode_id} is missing")
        name, size, shmid = inodes[file.inode_id]
        return replace(file, name=name, size=size, shmid=shmid)
    return file


def _process(images: _Images, files: dict[int, OpenFile], entry: ProcessEntry) -> ImageProcess:
    leader = Thread(entry.pid, _core(images, entry.pid))
    if leader.core.state == ZOMBIE:
        return ImageProcess(entry.pid, entry.ppid, entry.pgid, entry.sid, (leader,))
    if max(entry.threads, default=0) > LARGEST_PID:
        raise IntegrityError("pstree.img: a thread has an impossible id")
    others = tuple(Thread(tid, _core(images, tid)) for tid in entry.threads if tid != entry.pid)
    ids = read_ids(images.bytes_of(name := f"ids-{entry.pid}.img"), name)
    memory = read_mm(images.bytes_of(name := f"mm-{entry.pid}.img"), name)
    directories = _directories(images, entry.pid)
    return ImageProcess(
        pid=entry.pid,
        ppid=entry.ppid,
        pgid=entry.pgid,
        sid=entry.sid,
        threads=(leader, *others),
        descriptors=_descriptors(images, files, ids.files),
        memory=memory,
        mapped=_find_mapped_files(files, memory, name),
        exe=_find(files, memory.exe_file_id, name),
        cwd=_find(files, directories.cwd_id, f"fs-{entry.pid}.img"),
        root=_find(files, directories.root_id, f"fs-{entry.pid}.img"),
        ids=ids,
    )


def _core(images: _Images, tid: int) -> Core:
    name = f"core-{tid}.img"
    return read_core(images.bytes_of(name), name)


def _directories(images: _Images, pid: int) -> Directories:
    name = f"fs-{pid}.img"
    return read_directories(images.bytes_of(name), name)


def _descriptors(images: _Images, files: dict[int, OpenFile], table: int) -> tuple[OpenDescriptor, ...]:
    # CRIU writes no image for a process without descriptors.
    name = f"fdinfo-{table}.img"
    if table not in images.tables and name in images.names:
        images.tables[table] = tuple(
            OpenDescriptor(entry.fd, _find(files, entry.file_id, name), entry.close_on_exec)
            for entry in read_descriptors(images.bytes_of(name), name)
        )
    return images.tables.get(table, ())


def _find_mapped_files(files: dict[int, OpenFile], memory: AddressSpace, name: str) -> tuple[OpenFile, ...]:
    ids = dict.fromkeys(vma.file_id for vma in memory.vmas if vma.file_id is not None)
    return tuple(_find(files, file_id, name) for file_id in ids)


def _find(files: dict[int, OpenFile], file_id: int, where: str) -> OpenFile:
    if file_id not in files:
        raise IntegrityError(f"{where}: refers to file {file_id}, which is not in files.img")
    return files[file_id]


def _regular(files: dict[int, OpenFile], file_id: int, where: str) -> RegularFile:
    file = _find(files, file_id, where)
    if not isinstance(file, RegularFile):
        raise IntegrityError(f"{where}: file {file_id} is a {file.kind} instead of a file with a path")
    return file
