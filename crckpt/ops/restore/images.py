"""A checkpoint's images as CRIU reads them, as files or streams, repaired; and the memory that crckpt fills itself."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from crckpt.errors import NOTHING_LEFT, RestoreFailed
from crckpt.host import proc
from crckpt.host.disk.files import name_with_ending
from crckpt.host.disk.space import nearest_existing
from crckpt.host.syscalls.process_vm import can_write_memory
from crckpt.images.core import ZOMBIE, drop_parent_death_signal, drop_rseq
from crckpt.images.files import edit_files, renumber_devices
from crckpt.images.mm import claim_nothing, drop_dumpable
from crckpt.images.pagemap import pagemap_name
from crckpt.images.private_memory import own_memory
from crckpt.images.regfile import RegularFile
from crckpt.images.repairs import repair_image
from crckpt.images.sockets import UnixSocket
from crckpt.images.tree import ImageTree
from crckpt.images.tty import TerminalFiles, replace_ended_groups
from crckpt.model import CheckpointId
from crckpt.ops.context import Progress
from crckpt.ops.inspect.images import unpack_images
from crckpt.ops.lazy.client import Filler
from crckpt.ops.lazy.plan import make_plans
from crckpt.preflight.restore.files import find_unsized
from crckpt.preflight.restore.host import Grown
from crckpt.store import Checkpoint, Repository
from crckpt.tracking.preload.library import makes_last_calls

if TYPE_CHECKING:
    from crckpt.store.read.reader import Reader


class LateFill(Struct, frozen=True):
    """A helper that fills memory while the tree runs, and the checkpoint that it reads."""

    filler: Filler
    store: Path
    checkpoint: CheckpointId


# No process has this PID.
_NO_PID: Final = 0


def images_with_parent_signal(tree: ImageTree) -> frozenset[str]:
    """Names of images of the root's threads that ask for a signal when their parent ends."""
    # In a detached restore the parent is CRIU, which ends at once. The next parent is an init, which does not end: so
    # these threads lose nothing without the signal.
    threads = (thread for thread in tree.root.threads if thread.core.parent_death_signal)
    return frozenset(f"core-{thread.tid}.img" for thread in threads)


def find_reserving(tree: ImageTree) -> frozenset[str]:
    """Names of images of address spaces with mappings for which CRIU would claim memory, and the program does not."""
    spaces = ((process.pid, process.memory) for process in tree.processes if process.memory is not None)
    return frozenset(f"mm-{pid}.img" for pid, memory in spaces if any(vma.is_reservation for vma in memory.vmas))


# CRIU fails with a device that is missing.
_NO_DEVICE: Final = (1 << 31) - 1
# As CRIU names files that it makes again.
_GHOST: Final = re.compile(r"\.cr\.[0-9a-f]+\.[0-9a-f]+\.ghost\Z")


def find_new_paths(tree: ImageTree) -> dict[int, str]:
    """Find other paths for removed directories, and other directories for removed sockets, by file id."""
    if tree.is_apart("mnt"):
        return {}
    paths, ending = {}, os.urandom(8).hex()
    for file in tree.files:
        if isinstance(file, RegularFile) and file.remap is not None and file.is_removed_directory:
            # At its old path CRIU would change and remove a directory that somebody made there since.
            path = Path(file.path)
            name = name_with_ending(_GHOST.sub("", path.name), f".cr.{file.remap.target:x}.{ending}.ghost")
            paths[file.id] = str(nearest_existing(path.parent) / name)
        elif isinstance(file, UnixSocket) and file.deleted and file.directory:
            # The socket's name is relative: CRIU binds it there, and removes it.
            paths[file.id] = str(nearest_existing(Path(file.directory)))
    return paths


class ImageEdits(Struct, frozen=True):
    """The changes to images in a restore.

    - `without_signal`: names of images that lose their parent-death signal
    - `terminals`: these are replaced by other files
    - `paths`: other paths of files, or directories of sockets, by file id
    - `unsized`: files of which CRIU must not compare the size, by id
    - `groups`: the process groups of the tree; terminals that had another one in the foreground lose it
    - `reserving`: names of images of address spaces with reservations, which may be larger than the host's memory
    - `devices`: other numbers of network devices, by the number in the images
    - `leaves_last_calls`: CRIU sets no dumpable flags and restartable sequences (`last_calls`)
    """

    without_signal: frozenset[str] = frozenset()
    terminals: TerminalFiles | None = None
    paths: Mapping[int, str] = {}
    unsized: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    reserving: frozenset[str] = frozenset()
    devices: Mapping[int, int] = {}
    leaves_last_calls: bool = False

    def find(self, name: str) -> Iterator[Callable[[bytes], bytes]]:
        """Yield what changes the image of that name."""
        if name in self.without_signal:
            yield partial(drop_parent_death_signal, name=name)
        if self.terminals is not None and (edit := self.terminals.edit(name)):
            yield edit
        if (self.paths or self.unsized) and name == "files.img":
            yield partial(edit_files, paths=self.paths, unsized=self.unsized)
        if self.devices and name == "files.img":
            yield partial(renumber_devices, numbers=self.devices)
        if name == "tty-info.img":
            yield partial(replace_ended_groups, groups=self.groups)
        if name in self.reserving:
            yield partial(claim_nothing, name=name)
        if self.leaves_last_calls and name.startswith("core-"):
            yield partial(drop_rseq, name=name)
        if self.leaves_last_calls and name.startswith("mm-"):
            yield partial(drop_dumpable, name=name)


def plan_edits(
    tree: ImageTree,
    grown: Grown,
    *,
    keeps_signal: bool = False,
    terminals: TerminalFiles | None = None,
    devices: Mapping[int, str] | None = None,
) -> ImageEdits:
    """Plan the changes of a restore; `keeps_signal`: of the root's threads, when their parent ends.

    `devices` are the network devices of the dump: each has a name and a number, which changes with every boot.
    """
    without_signal = frozenset() if keeps_signal else images_with_parent_signal(tree)
    return ImageEdits(
        without_signal,
        terminals,
        find_new_paths(tree),
        find_unsized(tree, grown),
        tree.groups,
        find_reserving(tree),
        _find_devices(devices or {}),
        leaves_last_calls=makes_last_calls(),
    )


def _find_devices(devices: Mapping[int, str]) -> dict[int, int]:
    here = {name: number for number, name in socket.if_nameindex()} if devices else {}
    found = {number: here.get(name, _NO_DEVICE) for number, name in devices.items()}
    return found if any(old != new for old, new in found.items()) else {}


def write_images(
    repository: Repository, checkpoint: Checkpoint, work: Path, progress: Progress, edits: ImageEdits
) -> Path:
    """Write the images into a new directory in `work`, and return it. Raises IntegrityError, OSError."""
    directory = work / "images"
    directory.mkdir(mode=0o700)
    unpack_images(repository, checkpoint, directory, progress)
    for path in directory.iterdir():
        for edit in edits.find(path.name):
            path.write_bytes(edit(path.read_bytes()))
    return directory


class ImageStreams:
    """The images of a checkpoint as streams, which several threads may read. Reading raises IntegrityError.

    The memory that a process does not share is left out of the streams: `fill` puts it into the restored processes.
    """

    def __init__(
        self, reading: Reader, tree: ImageTree, progress: Progress, edits: ImageEdits, late: LateFill | None = None
    ) -> None:
        """`progress` gets (bytes read or filled, bytes in all); `late` fills what it can after the hold."""
        self._reading = reading
        self._image_edits = edits
        self._progress = progress
        self._done = 0
        self._lock = threading.Lock()
        # CRIU would read this memory with one thread; crckpt unpacks and writes it with one thread for each core.
        own = own_memory(tree) if can_write_memory() else {}
        self._owners = {pid: pagemap_name(pid) for pid in own}
        plans = make_plans(tree, own) if late is not None else ()
        self._memory_fill = reading.set_apart(
            {self._owners[pid]: ranges for pid, ranges in own.items()},
            {plan.pagemap: plan.ranges for plan in plans},
            late.filler.hot if late is not None else frozenset(),
        )
        self._root = tree.root.pid
        self._all = tuple(process.pid for process in tree.processes)
        self._late = late
        self._plans = tuple(plan for plan in plans if reading.is_apart(plan.pagemap))

    def begin(self) -> None:
        """Begin to unpack in the background, before CRIU asks for images."""
        self._progress(0, self._reading.total)
        if self._late is not None:
            self._late.filler.plan(self._late.store, self._late.checkpoint, self._plans)
        self._reading.begin()
        self._memory_fill.begin()

    def fill(self, init: int | None) -> None:
        """In the hold: write the memory that was left out of the streams into the restored processes.

        The processes are in our PID namespace, or in that of the process `init`. Raises IntegrityError, OSError.
        """
        pids = proc.outer_pids(self._owners, init)
        self._memory_fill.fill({name: pids.get(pid, _NO_PID) for pid, name in self._owners.items()}, self._count)
        if self._late is not None:
            self._late.filler.attach(self._root, proc.outer_pids(self._all, init))
        self._count(self._reading.total)  # CRIU did not ask for the rest

    def __call__(self, name: str) -> Iterator[memoryview] | None:
        """Return the image of that name, in parts as `Reader.image` gives them; None if there is none."""
        image = self._reading.image(name)
        if image is None:
            return None
        repair = repair_image(name)
        for edit in (*((repair,) if repair else ()), *self._image_edits.find(name)):
            # All of these are small images: to hold one whole costs little.
            image = iter([memoryview(edit(b"".join(bytes(part) for part in image)))])
        return self._count_parts(image)

    def _count_parts(self, image: Iterator[memoryview]) -> Iterator[memoryview]:
        for content in image:
            yield content
            self._count(len(content))

    def _count(self, more: int) -> None:
        with self._lock:
            self._done = min(self._done + more, self._reading.total)
            self._progress(self._done, self._reading.total)


def fill_memory(tree: ImageTree, init: int | None, images: ImageStreams | None) -> None:
    """In the hold: write the memory that CRIU did not get. All tasks must live before and after that.

    The tree is in our PID namespace, or in that of the process `init`. `images` is None if CRIU reads files: these
    contain all memory. Raises RestoreFailed, IntegrityError, OSError.
    """
    living = [process for process in tree.processes if process.state != ZOMBIE]
    tasks = ((process.pid, thread.tid) for process in living for thread in process.threads)
    if missing := proc.find_ended_tasks(tasks, init):
        raise RestoreFailed(f"CRIU did not restore these processes: {', '.join(map(str, missing))}", state=NOTHING_LEFT)
    if images is None:
        return
    images.fill(init)
    # Filling takes time. If a task was killed during it, CRIU would wait for the task forever, or crash.
    if ended := proc.find_ended_tasks(((process.pid, process.pid) for process in living), init):
        raise RestoreFailed(
            f"PID {', '.join(map(str, ended))} ended while crckpt filled its memory",
            state=NOTHING_LEFT,
            hint="check whether memory ran out (journalctl -k -g oom); then try again",
        )
