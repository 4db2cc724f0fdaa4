"""Checkpoints are removed with their tags, all that were named or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_sets import (
    of_pages,
    open_store,
    store,
)

from crckpt.errors import NoSuchCheckpoint
from crckpt.model import CheckpointId


def test_rm_removes_the_tags_of_its_checkpoints(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    first, second = (store(repository, tmp_path, of_pages(number)) for number in (1, 2))
    for checkpoint, name in ((first, "a"), (second, "b"), (first, "c")):
        repository.tag(checkpoint.id, name)
    repository.remove([first.id, first.id])
    assert [tag.name for tag in repository.tags()] == ["b"]
    assert list((repository.root / "tmp").iterdir()) == []


def test_rm_of_several_checkpoints_removes_all_or_none(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, of_pages(1))
    for wrong in (CheckpointId("0" * 64), CheckpointId("../../etc")):
        with pytest.raises(NoSuchCheckpoint):
            repository.remove([checkpoint.id, wrong])
    assert repository.checkpoints() == (checkpoint,)
