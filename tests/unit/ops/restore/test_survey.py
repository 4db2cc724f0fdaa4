"""Memory that images need: pages shared by parent and child count once."""

from __future__ import annotations

import numpy as np

from crckpt.ops.restore.survey import _count_bytes
from crckpt.store.format.extents import EXTENT, ZERO
from crckpt.store.format.index import PAGES, StoredFile

PAGE = 4096


def pages(name: str, *extents: tuple[int, int, int, int]) -> StoredFile:
    """Pages of a process, as extents (first, count, pack, page)."""
    return StoredFile(
        name, PAGES, PAGE * sum(extent[1] for extent in extents), f"of-{name}", np.array(list(extents), EXTENT)
    )


def test_all_pages_of_one_process_count_as_memory_to_restore() -> None:
    """Equal pages at different addresses are stored once, but need memory twice."""
    assert _count_bytes((pages("a", (10, 4, 0, 7), (20, 4, 0, 7), (30, 2, ZERO, 0)),)) == 10 * PAGE
    assert _count_bytes(()) == 0


def test_unwritten_pages_that_a_child_shares_count_once() -> None:
    parent = pages("a", (10, 4, 0, 100), (30, 2, ZERO, 0))
    child = pages("b", (10, 1, 0, 100), (11, 1, 1, 0), (12, 2, 0, 102), (30, 2, ZERO, 0))
    assert _count_bytes((parent, child)) == 7 * PAGE


def test_overlapping_extents_with_different_starts_count_once() -> None:
    parent = pages("a", (10, 4, 0, 100), (20, 4, ZERO, 0))
    child = pages("b", (12, 2, 0, 102), (22, 2, ZERO, 0))
    assert _count_bytes((parent, child)) == 8 * PAGE


def test_equal_pages_at_different_addresses_are_not_shared() -> None:
    assert _count_bytes((pages("a", (10, 1, 0, 5)), pages("b", (11, 1, 0, 5)))) == 2 * PAGE
