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
from crckpt.host.process.run import spelled
from crckpt.model import CheckpointId
from crckpt.ops.context import Context
from crckpt.ops.failures import written_to
from crckpt.ops.inspect.images import unpack_images

_EMPTY: Final = "give a directory that is empty or does not exist"


class Exported(Struct, frozen=True):
    """Where the images are, and the command that restores them without crckpt."""

    id: CheckpointId
    directory: Path
    command: str


def export(context: Context, ref: str, directory: Path) -> Exported:
    """Write the images of `ref` into `directory` (0700), which is made, or empty. They are durable once this returns.

    An existing one must be ours alone. It is opened once: what its name leads to later makes no difference. Raises
    UsageError, also if the disk is full, IntegrityError, OSError; then nothing is left.
    """
    repository = context.repository()
    with repository.shared():
        checkpoint = repository.get(repository.resolve(ref))
        target = directory.absolute()
        made = _prepared(target)
        with _opened(target) as place:
            try:
                with written_to(target, "give a directory on a larger disk"):
                    unpack_images(repository, checkpoint, place, context.progress)
                    # The checkpoint may be removed as soon as we have said that it is here.
                    sync_content(place, "exported")
            except BaseException:
                _emptied(place)
                if made:
                    target.rmdir()
                raise
        with suppress(PermissionError):  # we may write to where we may not look
            sync_directory(target.parent, "exported")
    words = restore_command(Path("criu"), Paths(target, target), checkpoint.options, sibling=False)
    return Exported(checkpoint.id, target, spelled(words))


def _prepared(directory: Path) -> bool:
    """Whether the directory had to be made."""
    try:
        ensure_directories(directory.parent, "exported")
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"cannot make {directory}: {error.strerror}", hint="give another directory") from error
    return True


@contextmanager
def _opened(directory: Path) -> Iterator[Path]:
    """The empty directory by a descriptor. Raises UsageError if it is not empty, or others can change it."""
    try:
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
                hint="name a directory that does not exist, or one of yours that others cannot write to",
            )
        with os.scandir(descriptor) as entries:
            is_empty = next(entries, None) is None
        if not is_empty:
            raise UsageError(f"{directory} is not an empty directory", hint=_EMPTY)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _emptied(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()
