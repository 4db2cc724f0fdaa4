"""Checkpoints are removed by their names: all of those that are named, or none."""

from __future__ import annotations

import pytest

from crckpt.errors import NoSuchCheckpoint
from crckpt.ops.context import Context
from crckpt.ops.rm import RemovalResult, rm
from crckpt.store import Checkpoint, Repository


def test_what_is_named_twice_is_removed_once(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    assert rm(context, (first.id, first.short_id)) == RemovalResult((first.id,), ())
    assert repository.checkpoints() == (second,)


def test_if_one_does_not_exist_all_stay(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    with pytest.raises(NoSuchCheckpoint):
        rm(context, ("job", "other"))
    assert repository.checkpoints() == checkpoints
