"""A list has checkpoints with their tags, those that are not durable yet, and those that cannot be read."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from image_sets import manifest_path

from crckpt.errors import NoSuchCheckpoint, StoreUnusable
from crckpt.model import JobName, RunId
from crckpt.ops.context import Context
from crckpt.ops.list import list_checkpoints
from crckpt.store import Checkpoint, PendingCheckpoint, Repository, UnreadableCheckpoint
from crckpt.store.pending import announced

NOW = datetime.now(UTC)


def test_list_has_each_checkpoint_with_its_tags(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    for name in ("good", "best"):
        repository.tag(second.id, name)
    listing = list_checkpoints(context, "job")
    assert [entry.checkpoint for entry in listing.entries] == [first, second]
    assert [set(entry.tags) for entry in listing.entries] == [set(), {"good", "best"}]
    assert list_checkpoints(context, None) == listing


def test_job_without_checkpoints_is_refused_unless_one_is_pending(context: Context, repository: Repository) -> None:
    with pytest.raises(NoSuchCheckpoint, match="job"):
        list_checkpoints(context, "job")
    with announced(repository.backend, JobName("job"), NOW, None, alone=False):
        listing = list_checkpoints(context, "job")
    assert ([pending.job for pending in listing.pending], listing.entries) == (["job"], ())


def test_committed_checkpoint_is_not_listed_lost(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    """crckpt was killed just after it had stored the checkpoint."""
    stored = checkpoints[0].run_id
    for run in (stored, RunId("another")):
        with pytest.raises(StoreUnusable), announced(repository.backend, JobName("job"), NOW, run, alone=True):
            raise StoreUnusable("killed")
    lost = [pending.run_id for pending in list_checkpoints(context, None).pending]
    assert lost == (["another"] if stored else [stored, "another"])


def test_checkpoint_committed_meanwhile_is_listed_once(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    """Another crckpt stores the checkpoint after the first look."""
    made, path = checkpoints[0], manifest_path(repository, checkpoints[0].id).parent
    others = ExitStack()

    class StoredMeanwhile(Repository):
        def read_all(self) -> tuple[tuple[Checkpoint, ...], tuple[UnreadableCheckpoint, ...]]:
            found = super().read_all()
            others.close()
            return found

        def pending(self) -> tuple[PendingCheckpoint, ...]:
            found = super().pending()
            others.close()
            return found

    class OfContext(Context, frozen=True):
        def repository(self, *, create: bool = False) -> Repository:
            return StoredMeanwhile.open(self.store, create=create)

    repository.remove([checkpoints[1].id])
    others.enter_context(announced(repository.backend, made.job, made.created, made.run_id, alone=False))
    hidden = path.rename(repository.root / "hidden")
    others.callback(hidden.rename, path)
    listing = list_checkpoints(OfContext(context.store), None)
    assert ([entry.checkpoint for entry in listing.entries], listing.pending) == ([made], ())


def test_unreadable_manifest_is_listed(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    path = manifest_path(repository, first.id)
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    listing = list_checkpoints(context, None)
    assert [entry.checkpoint for entry in listing.entries] == [second]
    assert [bad.id for bad in listing.unreadable] == [first.id]
