"""Read a checkpoint's files into a directory, as streams, or into memory. Every byte is verified first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from crckpt.errors import NoSuchCheckpoint
from crckpt.host.disk.files import open_private, resize, write_at, write_unsynced
from crckpt.images.pagemap import is_parent_image
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.layout import fingerprints_name
from crckpt.store.repository import Repository

if TYPE_CHECKING:
    from crckpt.store.read.contents import Contents
    from crckpt.store.read.frames import UnpackedFrames
    from crckpt.store.read.reader import Reader


def materialise(
    repository: Repository,
    checkpoint: Checkpoint,
    directory: Path,
    *,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Write the checkpoint's image files (mode 0600) into `directory`, which must be empty.

    Pages of zeros become holes in files above 1 MiB. `progress` gets (bytes done, bytes in all). Raises
    IntegrityError naming the checkpoint, pack and frame on any damage, FileExistsError if a file is there, OSError if
    the disk is full.
    """
    with open_reader(repository, checkpoint) as reading:
        done = 0
        for file in reading.files:
            descriptor = open_private(directory / file.name, "image")
            try:
                resize(descriptor, file.bytes, "image")
                for offset, content in reading.parts(file):
                    write_at(descriptor, content, offset, "image")
                    progress(done + offset + len(content), reading.total)
            finally:
                os.close(descriptor)
            done += file.bytes
            progress(done, reading.total)


def materialise_base(repository: Repository, checkpoint: Checkpoint, directory: Path) -> None:
    """Write CRIU's parent images into `directory`, which must be empty: the inventory and all page maps, no pages.

    Raises IntegrityError on damage, also of packs; OSError if the disk is full.
    """
    from crckpt.store.fingerprints import load_fingerprints, read_key

    with repository.shared():
        contents = _contents(repository, checkpoint)
        with contents.named():
            for number, use in enumerate(checkpoint.packs):
                # The new set may leave pages to any of these packs. A pack that has fingerprints was read whole before.
                if not repository.backend.exists(fingerprints_name(use.digest)):
                    load_fingerprints(repository.backend, read_key(repository.backend), contents.pack(number))
        for file in contents.index.files:
            # Spelt out here and below: `index`, which names the kinds, imports numpy.
            if file.kind == "file" and is_parent_image(file.name):
                write_unsynced(directory / file.name, contents.read(file), "image")


@contextmanager
def open_reader(
    repository: Repository, checkpoint: Checkpoint, unpacked: UnpackedFrames | None = None
) -> Iterator[Reader]:
    """Open the checkpoint's image files, to be read from front to back, several at once. Raises IntegrityError.

    Memory that is in `unpacked` is not read again.
    """
    from crckpt.store.read.reader import Reader
    from crckpt.store.workers import workers

    with repository.shared(), workers() as pool:
        yield Reader(_contents(repository, checkpoint), pool, unpacked)


def file_names(repository: Repository, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the checkpoint's image files. Raises IntegrityError."""
    with repository.shared():
        return tuple(file.name for file in _contents(repository, checkpoint).index.files if file.kind != "details")


def read_file(repository: Repository, checkpoint: Checkpoint, name: str) -> bytes:
    """Read one image file. Raises NoSuchCheckpoint if the checkpoint has no such file, IntegrityError."""
    with repository.shared():
        contents = _contents(repository, checkpoint)
        file = contents.index.find(name)
        if file is None:
            raise NoSuchCheckpoint(f"checkpoint {checkpoint.short_id} has no file {name}")
        return contents.read(file)


def details_of(repository: Repository, checkpoint: Checkpoint) -> bytes:
    """Return what `NewCheckpoint.details` was. Raises IntegrityError."""
    with repository.shared():
        contents = _contents(repository, checkpoint)
        return b"".join(contents.read(file) for file in contents.index.files if file.kind == "details")


def _contents(repository: Repository, checkpoint: Checkpoint) -> Contents:
    # Importing numpy takes 40 ms: commands that read no pages do without it.
    from crckpt.store.read.contents import contents_of

    return contents_of(repository, checkpoint)
