"""A checkpoint's images: what they tell of the tree, and as CRIU is to read them: with what it would lose mended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from crckpt.host import proc
from crckpt.host.syscalls.process_vm import can_write_memory
from crckpt.images.core import drop_parent_death_signal
from crckpt.images.own_memory import own_memory
from crckpt.images.pagemap import pagemap_name
from crckpt.images.pipes import PipeContent, read_pipe_contents
from crckpt.images.scheduling import drop_deadline
from crckpt.images.timers import rearm_timers
from crckpt.images.tree import ImageTree, read_tree
from crckpt.ops.context import Progress
from crckpt.store import Checkpoint, Repository, file_names, materialise, read_file

if TYPE_CHECKING:
    from crckpt.store.read.reading import Reader

_FILES = "files.img"
_CORE = "core-"
_PIPES = "pipes-data.img"
_NOBODY = 0
"""No process has this PID."""


def tree_of(repository: Repository, checkpoint: Checkpoint) -> ImageTree:
    """Everything of a checkpoint but its pages. Raises IntegrityError."""
    return read_tree(lambda name: read_file(repository, checkpoint, name), file_names(repository, checkpoint))


def pipe_contents(repository: Repository, checkpoint: Checkpoint, inodes: frozenset[int]) -> tuple[PipeContent, ...]:
    """What these pipes hold. Raises IntegrityError."""
    if not inodes:
        return ()
    found = read_pipe_contents(read_file(repository, checkpoint, _PIPES))
    return tuple(pipe for pipe in found if pipe.pipe_id in inodes)


def unpack(repository: Repository, checkpoint: Checkpoint, directory: Path, progress: Progress) -> None:
    """Write the images into `directory`, which must be empty. Raises IntegrityError, OSError."""
    materialise(repository, checkpoint, directory, progress=progress)
    files = directory / _FILES
    if files.exists():
        files.write_bytes(rearm_timers(files.read_bytes()))
    for core in directory.glob(f"{_CORE}*"):
        changed = drop_deadline(found := core.read_bytes())
        if changed != found:
            core.write_bytes(changed)


def orphaned(tree: ImageTree) -> frozenset[str]:
    """Names of images of the root's threads that ask for a signal when their parent ends.

    In a restore that parent is CRIU, which ends. The parent after that is an init, which does not: they can do without.
    """
    threads = (thread for thread in tree.root.threads if thread.core.parent_death_signal)
    return frozenset(f"core-{thread.tid}.img" for thread in threads)


def laid_out(
    repository: Repository, checkpoint: Checkpoint, work: Path, progress: Progress, orphans: frozenset[str]
) -> Path:
    """A new directory in `work`, with the images as files, `orphans` as `orphaned` has them.

    Raises IntegrityError, OSError.
    """
    directory = work / "images"
    directory.mkdir(mode=0o700)
    unpack(repository, checkpoint, directory, progress)
    for name in orphans:
        (directory / name).write_bytes(drop_parent_death_signal((directory / name).read_bytes(), name))
    return directory


class Streamed:
    """The images as streams, which may be read in several threads. Whoever reads one meets IntegrityError."""

    def __init__(
        self, reading: Reader, tree: ImageTree, progress: Progress, orphans: frozenset[str] = frozenset()
    ) -> None:
        """`progress` is told (bytes read or placed, bytes in all); `orphans` as `orphaned` has them."""
        self._reading = reading
        self._orphans = orphans
        self._progress = progress
        self._done = 0
        self._one_at_a_time = threading.Lock()
        # In a pid namespace that is the tree's own, and that CRIU makes, we do not know what processes are called.
        own = own_memory(tree) if can_write_memory() and not tree.is_apart("pid") else {}
        self._owners = {pid: pagemap_name(pid) for pid in own}
        self._placement = reading.set_apart({self._owners[pid]: ranges for pid, ranges in own.items()})

    def begin(self) -> None:
        """Begin to unpack, until CRIU asks for images."""
        self._reading.begin()
        self._placement.begin()

    def place(self, init: int | None) -> None:
        """In the hold: put the memory into place that CRIU was not given; then nothing is missing any more.

        The processes are in our pid namespace, or in that of the process `init`. Raises IntegrityError, OSError.
        """
        pids = proc.outer_pids(self._owners, init)
        self._placement.place({name: pids.get(pid, _NOBODY) for pid, name in self._owners.items()}, self._tell)
        # Whatever was not asked for.
        self._tell(self._reading.total)

    def __call__(self, name: str) -> Iterator[memoryview] | None:
        """The image of that name, in parts as `Reader.image` gives them; None if there is none."""
        image = self._reading.image(name)
        if image is None:
            return None
        if name == _FILES:
            image = iter([memoryview(rearm_timers(b"".join(bytes(part) for part in image)))])
        elif name.startswith(_CORE):
            image = iter([memoryview(drop_deadline(b"".join(bytes(part) for part in image)))])
        if name in self._orphans:
            image = iter([memoryview(drop_parent_death_signal(b"".join(bytes(part) for part in image), name))])
        return self._counted(image)

    def _counted(self, image: Iterator[memoryview]) -> Iterator[memoryview]:
        for content in image:
            yield content
            self._tell(len(content))

    def _tell(self, more: int) -> None:
        with self._one_at_a_time:
            self._done = min(self._done + more, self._reading.total)
            self._progress(self._done, self._reading.total)
