"""Read the images of a checkpoint: the tree that they describe, what its pipes hold, and all of them as files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crckpt.images.other_files import PipeContent, read_pipe_contents
from crckpt.images.repairs import repair_image
from crckpt.images.sockets import read_in_flight
from crckpt.images.tree import ImageTree, read_tree
from crckpt.ops.context import Context, Progress
from crckpt.store import Checkpoint, Repository, file_names, materialise, read_file


@contextmanager
def opened_checkpoint(context: Context, ref: str) -> Iterator[tuple[Repository, Checkpoint, ImageTree]]:
    """Read the tree of a checkpoint, which stays in the store meanwhile. Raises NoSuchCheckpoint, IntegrityError."""
    repository = context.repository()
    with repository.shared():
        checkpoint = repository.get(repository.resolve(ref))
        yield repository, checkpoint, read_image_tree(repository, checkpoint)


def read_image_tree(repository: Repository, checkpoint: Checkpoint) -> ImageTree:
    """Read everything of a checkpoint but its pages. Raises IntegrityError."""
    return read_tree(lambda name: read_file(repository, checkpoint, name), file_names(repository, checkpoint))


def read_pipes(repository: Repository, checkpoint: Checkpoint, inodes: frozenset[int]) -> tuple[PipeContent, ...]:
    """Read what these pipes hold. Raises IntegrityError."""
    if not inodes:
        return ()
    found = read_pipe_contents(read_file(repository, checkpoint, "pipes-data.img"))
    return tuple(pipe for pipe in found if pipe.pipe_id in inodes)


def read_files_in_flight(repository: Repository, checkpoint: Checkpoint) -> frozenset[int]:
    """Read the ids of the open files that wait in unix sockets. Raises IntegrityError."""
    name = "sk-queues.img"
    if name not in file_names(repository, checkpoint):
        return frozenset()
    return read_in_flight(read_file(repository, checkpoint, name))


def unpack_images(repository: Repository, checkpoint: Checkpoint, directory: Path, progress: Progress) -> None:
    """Write the images into `directory`, which must be empty. Raises IntegrityError, OSError."""
    materialise(repository, checkpoint, directory, progress=progress)
    # Only these are repaired: everything else is as CRIU wrote it.
    for path in (directory / "files.img", *directory.glob("core-*")):
        repair = repair_image(path.name)
        if repair is not None and path.exists():
            content = path.read_bytes()
            repaired = repair(content)
            if repaired != content:
                path.write_bytes(repaired)
