"""Tags are given to a checkpoint by any of its names, moved, and removed."""

from __future__ import annotations

import pytest

from crckpt.errors import NoSuchCheckpoint, UsageError
from crckpt.model import JobName
from crckpt.ops.context import Context
from crckpt.ops.tag import TagResult, tag
from crckpt.store import Checkpoint, Repository


def test_tag_moves_to_another_checkpoint(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    assert tag(context, first.short_id, "good") == TagResult(JobName("job"), "good", first.id)
    assert tag(context, "job", "good").id == second.id, "the newest of the job"
    assert repository.resolve("job:good") == second.id
    assert tag(context, "job:good", "good", remove=True).id == second.id
    assert repository.tags() == ()


def test_invalid_tags_are_refused(context: Context, checkpoints: tuple[Checkpoint, Checkpoint]) -> None:
    with pytest.raises(UsageError, match="is not a valid tag name"):
        tag(context, "job", "../x")
    with pytest.raises(NoSuchCheckpoint):
        tag(context, "other", "good")
    with pytest.raises(NoSuchCheckpoint):
        tag(context, "job", "good", remove=True)
