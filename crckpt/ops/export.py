"""Write a checkpoint as plain CRIU images."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from crckpt.criu.command import Paths, restore_command
from crckpt.errors import UsageError
from crckpt.host.files import ensure_directories, sync_files
from crckpt.host.run import spelled
from crckpt.model import CheckpointId
from crckpt.ops.context import Context
from crckpt.ops.failures import written_to
from crckpt.ops.images import unpack


class Exported(Struct, frozen=True):
    """Where the images are, and the command that restores them without crckpt."""

    id: CheckpointId
    directory: Path
    command: str


def export(context: Context, ref: str, directory: Path) -> Exported:
    """Write the images of `ref` into `directory` (0700), which is made, or empty. They are durable once this returns.

    Raises UsageError, also if the disk is full, IntegrityError, OSError; then nothing is left.
    """
    repository = context.repository()
    with repository.shared():
        checkpoint = repository.get(repository.resolve(ref))
        target = directory.absolute()
        made = _prepared(target)
        try:
            with written_to(target, "give a directory on a larger disk"):
                unpack(repository, checkpoint, target, context.progress)
                # The checkpoint may be removed as soon as we have said that it is here.
                sync_files(target, "exported")
        except BaseException:
            _emptied(target, remove=made)
            raise
    words = restore_command(Path("criu"), Paths(target, target), checkpoint.options, sibling=False)
    return Exported(checkpoint.id, target, spelled(words))


def _prepared(directory: Path) -> bool:
    """Whether the directory had to be made."""
    try:
        ensure_directories(directory.parent, "exported")
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if not directory.is_dir() or any(directory.iterdir()):
            hint = "give a directory that is empty or does not exist"
            raise UsageError(f"{directory} is not an empty directory", hint=hint) from None
        return False
    except OSError as error:
        raise UsageError(f"cannot make {directory}: {error.strerror}", hint="give another directory") from error
    return True


def _emptied(directory: Path, *, remove: bool) -> None:
    for file in directory.iterdir():
        file.unlink()
    if remove:
        directory.rmdir()
