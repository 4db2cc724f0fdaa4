"""Differences between two checkpoints of a tree."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from recorded_images import RECORDED

from crckpt.errors import NoSuchCheckpoint
from crckpt.ops.context import Context
from crckpt.ops.inspect.diff import diff
from crckpt.store import Checkpoint


def test_changed_heap_page_is_counted(context: Context, recordings: tuple[Checkpoint, Checkpoint]) -> None:
    first, second = recordings
    result = diff(context, first.id, second.id)
    assert (result.first, result.second, result.come, result.gone) == (first, second, (), ())
    (change,) = result.changed
    assert (change.pid, change.before == change.after) == (RECORDED.root.pid, True)
    (heap,) = change.maps
    assert (heap.pages.changed, heap.pages.new, heap.pages.gone) == (1, 0, 0)
    assert result.pages == change.pages == heap.pages
    back = diff(context, second.id, first.id)
    assert replace(back, first=first, second=second) == result, "the same page, the other way round"


def test_diff_of_a_checkpoint_with_itself_is_empty(context: Context, recordings: tuple[Checkpoint, Checkpoint]) -> None:
    assert diff(context, "job", "job").changed == ()
    with pytest.raises(NoSuchCheckpoint):
        diff(context, "job", "other")
