"""A store is repaired from another one; an unusable other store is named by its option."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from image_sets import flip, packs

from crckpt.errors import StoreUnusable, UsageError
from crckpt.ops.context import Context
from crckpt.ops.verify import repair
from crckpt.store import Checkpoint, Repository


def test_damaged_store_is_repaired_from_a_copy(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    shutil.copytree(repository.root, tmp_path / "copy")
    flip(packs(repository)[0], 100)
    assert repair(context, None, None).now.damages
    result = repair(context, None, tmp_path / "copy")
    assert result.now.damages == ()
    assert result.repaired
    assert repair(context, checkpoints[0].short_id, None).now.damages == ()


def test_invalid_other_store_is_refused(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    with pytest.raises(StoreUnusable) as caught:
        repair(context, None, tmp_path / "none")
    assert "--from" in caught.value.hint
    with pytest.raises(UsageError):
        repair(context, None, repository.root)
