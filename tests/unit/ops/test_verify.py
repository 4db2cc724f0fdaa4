"""verify reads one checkpoint or all, and reports its progress."""

from __future__ import annotations

import pytest
from image_sets import flip, packs
from msgspec.structs import replace

from crckpt.errors import NoSuchCheckpoint
from crckpt.ops.context import Context
from crckpt.ops.verify import verify
from crckpt.store import Checkpoint, Repository


def test_verify_checks_one_or_all_checkpoints(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    (own,) = (use.digest for use in second.packs if use.digest != first.packs[0].digest)
    (pack,) = (path for path in packs(repository) if path.stem == own)
    flip(pack, 100)
    assert verify(context, first.short_id).damages == ()
    assert verify(context, None).lost == (second.id,)
    with pytest.raises(NoSuchCheckpoint):
        verify(context, "other")


def test_progress_of_verify_ends_at_the_total(context: Context, checkpoints: tuple[Checkpoint, Checkpoint]) -> None:
    progress: list[tuple[int, int]] = []
    verify(replace(context, progress=lambda done, total: progress.append((done, total))), None)
    assert progress[-1][0] == progress[-1][1] > 0
    assert progress == sorted(progress)
