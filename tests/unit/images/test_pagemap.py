"""Page maps: crckpt reads what CRIU writes, and refuses what it does not know."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.pagemap import IN_PARENT, LAZY, PRESENT, Entry, PageMap, read_pagemap, write_pagemap
from crckpt.images.wire import VARINT, encode, fields
from crckpt.model import PAGE_SIZE

FLAGS = (PRESENT, PRESENT | LAZY, IN_PARENT, IN_PARENT | LAZY)
entries = st.builds(
    lambda address, pages, flags: Entry(address * PAGE_SIZE, pages, flags),
    st.integers(0, (1 << 51) - 1),
    st.integers(0, 1 << 50),
    st.sampled_from(FLAGS),
)


def image(*payloads: list[tuple[int, int, int | bytes]]) -> bytes:
    """Make a page map image of these records, after a head with pages_id 7."""
    head = Record(encode([(1, VARINT, 7)]))
    return write_image(Image(magics.PAGEMAP, (head, *(Record(encode(payload)) for payload in payloads))))


def messages(content: bytes) -> list[dict[int, int | bytes]]:
    """Return the fields of each record of an image by their numbers."""
    records = read_image(content, "pagemap.img", magics.PAGEMAP).records
    return [{number: value for number, _, value in fields(record.payload)} for record in records]


@given(st.integers(0, (1 << 32) - 1), st.lists(entries, max_size=20))
def test_page_maps_that_were_written_are_read_back(pages_id: int, listed: list[Entry]) -> None:
    found = read_pagemap(write_pagemap(PageMap.of(pages_id, listed)))
    assert (found.pages_id, found.entries) == (pages_id, tuple(listed))


@given(st.lists(entries, min_size=1, max_size=4), st.data())
def test_vectorised_and_single_decoding_agree(listed: list[Entry], data: st.DataObject) -> None:
    """One byte of a valid page map is changed or removed."""
    content = bytearray(write_pagemap(PageMap.of(1, listed)))
    at = data.draw(st.integers(8, len(content) - 1))
    content[at : at + 1] = data.draw(st.binary(max_size=2))

    def read() -> tuple[Entry, ...] | str:
        try:
            return read_pagemap(bytes(content)).entries
        except IntegrityError as error:
            return error.message

    with patch("crckpt.images.pagemap._read_usual", lambda _: None):
        expected = read()
    assert read() == expected


def test_real_page_maps_round_trip_also_for_older_criu(images: dict[str, bytes]) -> None:
    """CRIU before 4.2 reads only the 32-bit count: with 0 it would restore no page."""
    names = [name for name in images if name.startswith("pagemap-")]
    assert len(names) > 3
    for name in names:
        was, now = messages(images[name]), messages(write_pagemap(read_pagemap(images[name], name)))
        assert now == [was[0], *({**entry, 2: entry[5]} for entry in was[1:])]


def test_page_counts_that_older_crius_do_not_know_are_split() -> None:
    decoded = messages(
        write_pagemap(PageMap.of(1, [Entry(0, 1 << 32, PRESENT), Entry(1 << 45, (1 << 32) - 1, PRESENT)]))
    )
    assert [(entry[2], entry[5]) for entry in decoded[1:]] == [(0, 1 << 32), ((1 << 32) - 1, (1 << 32) - 1)]


def test_present_pages_of_a_page_map_are_those_in_its_file() -> None:
    pagemap = PageMap.of(3, (Entry(0, 2, PRESENT), Entry(8192, 5, IN_PARENT), Entry(65536, 4, PRESENT | LAZY)))
    assert (pagemap.present, pagemap.pages_name) == (6, "pages-3.img")


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.sampled_from(FLAGS)), max_size=8))
def test_joined_page_map_has_the_same_pages_in_fewer_entries(parts: list[tuple[int, int, int]]) -> None:
    listed = [Entry(first * PAGE_SIZE, pages, flags) for first, pages, flags in parts]
    joined = PageMap.of(1, listed).join().entries

    def pages(found: Iterable[Entry]) -> list[int]:
        return [entry.vaddr + at * PAGE_SIZE for entry in found for at in range(entry.pages)]

    assert pages(joined) == pages(listed)
    assert {entry.flags for entry in joined} <= {PRESENT}
    assert all(after.vaddr != before.vaddr + before.pages * PAGE_SIZE for before, after in pairwise(joined))


def test_last_page_of_the_address_space_is_not_joined_with_the_first() -> None:
    listed = (Entry((1 << 64) - PAGE_SIZE, 1, PRESENT), Entry(0, 1, PRESENT))
    assert PageMap.of(1, listed).join().entries == listed


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        pytest.param([(1, VARINT, 4096), (2, VARINT, 3)], Entry(4096, 3, PRESENT), id="before flags"),
        pytest.param([(1, VARINT, 4096), (2, VARINT, 3), (3, VARINT, 1)], Entry(4096, 3, IN_PARENT), id="in_parent"),
        pytest.param([(1, VARINT, 4096), (2, VARINT, 3), (3, VARINT, 0)], Entry(4096, 3, PRESENT), id="not in_parent"),
        pytest.param(
            [(1, VARINT, 1 << 63), (2, VARINT, 0), (4, VARINT, 4), (5, VARINT, 1)], Entry(1 << 63, 1, 4), id="high"
        ),
        pytest.param([(1, VARINT, 4096), (2, VARINT, 3), (4, VARINT, 4)], Entry(4096, 3, PRESENT), id="32-bit count"),
        pytest.param([(5, VARINT, 9), (4, VARINT, 4), (2, VARINT, 0), (1, VARINT, 0)], Entry(0, 9, 4), id="any order"),
    ],
)
def test_page_map_entries_of_older_criu_are_read(payload: list[tuple[int, int, int | bytes]], expected: Entry) -> None:
    assert read_pagemap(image(payload)).entries == (expected,)


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        pytest.param(
            [(1, VARINT, 0), (2, VARINT, 0), (4, VARINT, 4), (5, VARINT, 1), (6, VARINT, 1)], "field 6", id="new field"
        ),
        pytest.param([(1, VARINT, 0), (2, VARINT, 0), (4, VARINT, 12), (5, VARINT, 1)], "flags 0xc", id="new flag"),
        pytest.param(
            [(1, VARINT, 0), (2, VARINT, 0), (4, VARINT, 2), (5, VARINT, 1)], "not in these images", id="lazy only"
        ),
        pytest.param(
            [(1, VARINT, 0), (2, VARINT, 0), (4, VARINT, 5), (5, VARINT, 1)], "not in these images", id="two places"
        ),
        pytest.param(
            [(1, VARINT, 4097), (2, VARINT, 0), (4, VARINT, 4), (5, VARINT, 1)],
            "are not in an address space",
            id="not aligned",
        ),
        pytest.param(
            [(1, VARINT, 4096), (2, VARINT, 0), (4, VARINT, 4), (5, VARINT, 1 << 52)],
            "are not in an address space",
            id="beyond",
        ),
        pytest.param([(2, VARINT, 0), (4, VARINT, 4), (5, VARINT, 1)], "field 1 is missing", id="no address"),
    ],
)
def test_unknown_page_map_entries_are_refused(payload: list[tuple[int, int, int | bytes]], word: str) -> None:
    with pytest.raises(IntegrityError, match=word):
        read_pagemap(image(payload), "pagemap-1.img")


def test_page_map_without_a_head_is_refused() -> None:
    with pytest.raises(IntegrityError, match="the head is missing"):
        read_pagemap(write_image(Image(magics.PAGEMAP, ())))
