"""Extents are cut and joined without a page being lost, moved or doubled."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crckpt.store.format.extents import (
    EXTENT,
    ZERO,
    Extents,
    concatenate_extents,
    expand_ranges,
    extent_ends,
    join_extents,
    page_locations,
    slice_extents,
)

SINGLE = st.tuples(st.integers(0, 50), st.integers(1, 20), st.sampled_from([0, 1, ZERO]), st.integers(0, 50))
EXTENTS = st.lists(SINGLE, min_size=1, max_size=8).map(lambda found: np.array(found, EXTENT))


def _pages(extents: Extents) -> list[tuple[int, int, int]]:
    pack, page = page_locations(extents)
    return list(
        zip(expand_ranges(extents["first"], extents["count"]).tolist(), pack.tolist(), page.tolist(), strict=True)
    )


@given(EXTENTS, st.data())
def test_part_of_extents_has_the_requested_pages(extents: Extents, data: st.DataObject) -> None:
    pages = _pages(extents)
    start = data.draw(st.integers(0, len(pages) - 1))
    end = data.draw(st.integers(start + 1, len(pages)))
    kept = extents.copy()
    assert _pages(slice_extents(extents, extent_ends(extents), start, end)) == pages[start:end]
    assert (extents == kept).all()


@given(EXTENTS, st.integers(1, 30))
def test_parts_of_extents_concatenated_are_the_whole(extents: Extents, step: int) -> None:
    total = int(extents["count"].sum())
    parts = [slice_extents(extents, extent_ends(extents), at, min(at + step, total)) for at in range(0, total, step)]
    assert _pages(concatenate_extents(parts)) == _pages(extents)
    assert len(concatenate_extents(parts)) == len(join_extents(extents))
