"""Read the images of a checkpoint: the tree that they describe, what its pipes hold, and all of them as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from crckpt.images.files import put_listeners_first
from crckpt.images.pipes import PipeContent, read_pipe_contents
from crckpt.images.scheduling import drop_deadline
from crckpt.images.timers import rearm_timers
from crckpt.images.tree import ImageTree, read_tree
from crckpt.ops.context import Progress
from crckpt.store import Checkpoint, Repository, file_names, materialise, read_file

_FILES: Final = "files.img"
_CORE: Final = "core-"
_PIPES: Final = "pipes-data.img"


def read_image_tree(repository: Repository, checkpoint: Checkpoint) -> ImageTree:
    """Read everything of a checkpoint but its pages. Raises IntegrityError."""
    return read_tree(lambda name: read_file(repository, checkpoint, name), file_names(repository, checkpoint))


def read_pipes(repository: Repository, checkpoint: Checkpoint, inodes: frozenset[int]) -> tuple[PipeContent, ...]:
    """Read what these pipes hold. Raises IntegrityError."""
    if not inodes:
        return ()
    found = read_pipe_contents(read_file(repository, checkpoint, _PIPES))
    return tuple(pipe for pipe in found if pipe.pipe_id in inodes)


def unpack_images(repository: Repository, checkpoint: Checkpoint, directory: Path, progress: Progress) -> None:
    """Write the images into `directory`, which must be empty. Raises IntegrityError, OSError."""
    materialise(repository, checkpoint, directory, progress=progress)
    # Only these are repaired: everything else is as CRIU wrote it.
    for path in (directory / _FILES, *directory.glob(f"{_CORE}*")):
        repair = repair_image(path.name)
        if repair is not None and path.exists():
            content = path.read_bytes()
            repaired = repair(content)
            if repaired != content:
                path.write_bytes(repaired)


def repair_image(name: str) -> Callable[[bytes], bytes] | None:
    """Return what repairs the content of the image of that name; None for images that need no repair."""
    # CRIU would restore timers that never expire, and fail at a task with the scheduling policy SCHED_DEADLINE or at a
    # unix connection that waits at a listener.
    if name == _FILES:
        return _repair_files
    return drop_deadline if name.startswith(_CORE) else None


def _repair_files(content: bytes) -> bytes:
    return put_listeners_first(rearm_timers(content))
