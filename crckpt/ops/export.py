"""Write a checkpoint as plain CRIU images."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.criu.command import Paths, restore_command
from crckpt.errors import UsageError
from crckpt.host.disk.files import ensure_directories, sync_content, sync_directory
from crckpt.host.process.run import quote
from crckpt.model import CheckpointId
from crckpt.ops.context import Context
from crckpt.ops.failures import full_disk_reported
from crckpt.ops.inspect.images import unpack_images

_EMPTY: Final = "name a directory that is empty or does not exist"


class ExportResult(Struct, frozen=True):
    """The directory with the images, and the command that restores them without crckpt."""

    id: CheckpointId
    directory: Path
    command: str


def export(context: Context, ref: str, directory: Path) -> ExportResult:
    """Write the images of `ref` into `directory` (0700), which must be empty or new. They are durable after this.

    Nobody else may be able to change an existing directory. Raises UsageError (also if the disk is full),
    IntegrityError, OSError; then nothing is left in it.
    """
    repository = context.repository()
    with repository.shared():
        checkpoint = repository.get(repository.resolve(ref))
        target = directory.absolute()
        try:
            ensure_directories(target.parent, "exported")
            target.mkdir(mode=0o700)
            is_made = True
        except FileExistsError:
            is_made = False
        except OSError as error:
            raise UsageError(f"cannot make {target}: {error.strerror}", hint="name another directory") from error
        with _opened(target) as place:
            try:
                with full_disk_reported(target, "name a directory on a larger disk"):
                    unpack_images(repository, checkpoint, place, context.progress)
                    # The user may remove the checkpoint as soon as crckpt says that it was exported.
                    sync_content(place, "exported")
            except BaseException:
                for file in place.iterdir():
                    file.unlink()
                if is_made:
                    target.rmdir()
                raise
        # Sync the name last: without it, a crash may remove the directory with all that is in it.
        with suppress(PermissionError):  # a directory that can be written but not read
            sync_directory(target.parent, "exported")
    words = restore_command(Path("criu"), Paths(target, target), checkpoint.options, sibling=False)
    return ExportResult(checkpoint.id, target, quote(words))


@contextmanager
def _opened(directory: Path) -> Iterator[Path]:
    """Open the empty directory. Raises UsageError if it is not empty, or if others can change it."""
    try:
        # Open it once: whoever can write above it may replace the directory after the check.
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{directory} is not an empty directory", hint=_EMPTY) from error
    try:
        status = os.fstat(descriptor)
        writable = status.st_mode & (stat.S_IWOTH if status.st_gid == os.getegid() else stat.S_IWOTH | stat.S_IWGRP)
        if status.st_uid != os.geteuid() or writable:
            raise UsageError(
                f"{directory} belongs to uid {status.st_uid} and has mode {status.st_mode & 0o777:o}: "
                "others can change it",
                hint="name a directory that does not exist, or your own directory that others cannot write to",
            )
        with os.scandir(descriptor) as entries:
            is_empty = next(entries, None) is None
        if not is_empty:
            raise UsageError(f"{directory} is not an empty directory", hint=_EMPTY)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
