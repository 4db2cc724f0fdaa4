"""Extents as columns: an inverse, small, and refused where they are damaged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crckpt.errors import IntegrityError
from crckpt.store.format.extents import EXTENT, ZERO, Extents
from crckpt.store.format.index import decode_columns, encode_columns

numbers = st.integers(0, (1 << 64) - 1) | st.integers(0, 300)
rows = st.tuples(numbers, st.integers(1, (1 << 32) - 1), st.integers(0, 5) | st.just(ZERO) | st.just(ZERO - 1), numbers)


@given(st.lists(rows))
def test_index_columns_round_trip(found: list[tuple[int, int, int, int]]) -> None:
    extents: Extents = np.array(found, EXTENT)
    extents["page"][extents["pack"] == ZERO] = 0
    assert decode_columns(encode_columns(extents), len(extents)).tolist() == extents.tolist()


def test_index_columns_of_scattered_pages_are_small() -> None:
    rng = np.random.default_rng(1)
    extents = np.zeros(10_000, EXTENT)
    extents["first"] = 0x400 + np.arange(10_000)
    extents["count"] = 1
    extents["pack"] = rng.integers(0, 40, 10_000)
    for pack in range(40):
        inside = extents["pack"] == pack
        extents["page"][inside] = np.cumsum(rng.integers(1, 3, inside.sum()))
    assert len(encode_columns(extents)) < 2 * len(extents)


@pytest.mark.parametrize("change", [slice(0, -1), slice(1, None), slice(0, 0)])
def test_damaged_index_columns_are_refused(change: slice) -> None:
    content = encode_columns(np.ones(50, EXTENT))
    with pytest.raises(IntegrityError):
        decode_columns(content[change], 50)
    for wrong in (49, 51):
        with pytest.raises(IntegrityError):
            decode_columns(content, wrong)
