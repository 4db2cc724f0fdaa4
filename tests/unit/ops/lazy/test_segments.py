"""Segments: which addresses still belong to which pages, compared with a table of single pages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crckpt.ops.lazy.address_space import Segment, Segments

PAGES = 24
_RANGES = st.tuples(st.integers(0, PAGES - 1), st.integers(1, 8))
_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("drop"), _RANGES, st.just(0)),
        st.tuples(st.just("move"), _RANGES, st.integers(0, PAGES - 1)),
    ),
    max_size=12,
)


@given(st.sets(st.integers(0, PAGES - 1)), _CHANGES)
def test_changed_segments_agree_with_a_simple_page_table(
    pages: set[int], changes: list[tuple[str, tuple[int, int], int]]
) -> None:
    table = {page: page for page in pages}
    segments = Segments(Segment(page, page + 1, page) for page in pages)
    for what, (start, length), target in changes:
        if what == "drop":
            segments.drop(start, start + length)
            table = {page: origin for page, origin in table.items() if not start <= page < start + length}
            continue
        segments.move(start, target, length)
        taken = {page: origin for page, origin in table.items() if start <= page < start + length}
        kept = {page: origin for page, origin in table.items() if page not in taken}
        kept = {page: origin for page, origin in kept.items() if not target <= page < target + length}
        table = kept | {page - start + target: origin for page, origin in taken.items()}
    last = PAGES + 8
    assert {page: segments.find_origin(page) for page in range(last)} == {page: table.get(page) for page in range(last)}
    for origin in range(last):
        found = [
            (page, segment.origin + page - segment.start)
            for segment in segments.locate(origin, 3)
            for page in range(segment.start, segment.end)
        ]
        assert sorted(found) == sorted((page, of) for page, of in table.items() if origin <= of < origin + 3)


def test_copy_of_memory_segments_is_independent_of_the_original() -> None:
    segments = Segments([Segment(0, 10, 100)])
    forked = segments.copy()
    segments.drop(0, 5)
    assert forked.find_origin(2) == 102
    assert segments.find_origin(2) is None
    assert tuple(segments) == (Segment(5, 10, 105),)
