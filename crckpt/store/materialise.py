"""Get a checkpoint's files back: all into a directory, or one into memory. Every byte is verified before it is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from crckpt.errors import NoSuchCheckpoint
from crckpt.store.manifest import Checkpoint
from crckpt.store.repository import Repository


def materialise(
    repository: Repository,
    checkpoint: Checkpoint,
    directory: Path,
    *,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Write the checkpoint's image files (mode 0600) into `directory`, which must be empty.

    Pages of zeros become holes. `progress` is told (bytes done, bytes in all). Raises IntegrityError naming the
    checkpoint, pack and frame on any damage, FileExistsError if a file is there, OSError if the disk is full.
    """
    from crckpt.store.unpacking import unpack

    with repository.shared():
        unpack(repository.contents(checkpoint), directory, progress)


def file_names(repository: Repository, checkpoint: Checkpoint) -> tuple[str, ...]:
    """The names of the checkpoint's image files. Raises IntegrityError."""
    with repository.shared():
        return tuple(file.name for file in repository.contents(checkpoint).index.files if file.kind != "details")


def read_file(repository: Repository, checkpoint: Checkpoint, name: str) -> bytes:
    """One image file. Raises NoSuchCheckpoint if the checkpoint has no such file, IntegrityError."""
    with repository.shared():
        contents = repository.contents(checkpoint)
        file = contents.index.find(name)
        if file is None:
            raise NoSuchCheckpoint(f"checkpoint {checkpoint.short_id} has no file {name}")
        return contents.read(file)


def details_of(repository: Repository, checkpoint: Checkpoint) -> bytes:
    """What `NewCheckpoint.details` was. Raises IntegrityError."""
    with repository.shared():
        contents = repository.contents(checkpoint)
        return b"".join(contents.read(file) for file in contents.index.files if file.kind == "details")
