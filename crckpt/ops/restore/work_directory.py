"""The private directory in which a restore works: in the store, or outside of a store that cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crckpt.host.disk.runtime_directory import make_runtime_directory, runtime_directory
from crckpt.ops.context import Context, require_staging
from crckpt.store import Repository, staged


@contextmanager
def opened_work_directory(context: Context, repository: Repository) -> Iterator[Path]:
    """Make the directory, and remove it after the block. Raises UsageError if `--staging` is no safe directory."""
    if not repository.backend.find_write_refusal():
        with repository.transaction() as begun:
            yield begun.path
        return
    with staged(find_work_place(context, repository)) as path:
        yield path


def find_work_place(context: Context, repository: Repository) -> Path:
    """The directory in which the private one is made. Raises as `opened_work_directory`."""
    if not repository.backend.find_write_refusal():
        return repository.backend.scratch
    if context.staging is not None:
        require_staging(context)
        return context.staging
    place = runtime_directory() / "restoring"
    # It makes the directories above the path that it gets.
    make_runtime_directory(place / "any")
    return place
