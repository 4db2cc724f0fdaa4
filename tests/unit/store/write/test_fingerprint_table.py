"""The table of fingerprints does what a dictionary does, up to what it may remember."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crckpt.store.fingerprints import FingerprintTable
from crckpt.store.format.extents import Numbers

# These numbers collide in the slots of the table, and occur repeatedly.
LOW = st.sampled_from([0, 1, 2, 7, 8, 1 << 20, 1 << 21, 1 << 22, (1 << 20) + 1, (1 << 64) - 1])
PRINTS = LOW.map(lambda low: (low, low ^ 5))
BATCHES = st.lists(st.lists(PRINTS, max_size=40), max_size=6)
# These also differ in their high halves alone.
SIMILAR_FINGERPRINTS = st.lists(st.tuples(LOW, st.integers(0, 3)), max_size=60)


def _array(prints: list[tuple[int, int]]) -> Numbers:
    return np.array(prints, np.uint64).reshape(-1, 2)


@given(BATCHES)
def test_fingerprint_table_gives_the_same_numbers_as_a_dictionary(batches: list[list[tuple[int, int]]]) -> None:
    table, known = FingerprintTable(200), dict[tuple[int, int], int]()
    for batch in batches:
        assert table.find(_array(batch)).tolist() == [known.get(print_, -1) for print_ in batch]
        before = len(known)
        numbers, fresh = table.number(_array(batch))
        assert numbers.tolist() == [known.setdefault(print_, len(known)) for print_ in batch]
        assert [batch[row] for row in fresh.tolist()] == list(known)[before:]
        assert table.count == len(known)


@given(BATCHES, st.integers(0, 12))
def test_fingerprint_that_the_table_forgot_is_new_again(batches: list[list[tuple[int, int]]], most: int) -> None:
    table, numbered = FingerprintTable(most), list[tuple[int, int]]()
    for batch in batches:
        numbers, fresh = table.number(_array(batch))
        numbered += [batch[row] for row in fresh.tolist()]
        assert [numbered[number] for number in numbers.tolist()] == batch
        assert table.count == len(numbered)
        found = table.find(_array(numbered)).tolist()
        assert found == [first if (first := numbered.index(print_)) < most else -1 for print_ in numbered]


@given(SIMILAR_FINGERPRINTS, st.integers(0, 12))
def test_different_fingerprints_have_different_numbers(prints: list[tuple[int, int]], most: int) -> None:
    numbers, fresh = FingerprintTable(most).number(_array(prints))
    assert [prints[fresh[number]] for number in numbers.tolist()] == prints


@given(SIMILAR_FINGERPRINTS, st.integers(0, 80))
def test_oldest_of_equal_fingerprints_is_found(prints: list[tuple[int, int]], most: int) -> None:
    table = FingerprintTable(most)
    table.extend(_array(prints))
    remembered = prints[:most]
    expected = [remembered.index(print_) if print_ in remembered else -1 for print_ in prints]
    assert table.find(_array(prints)).tolist() == expected
    assert table.count == len(prints)


@given(BATCHES, st.integers(0, 5))
def test_fingerprint_table_that_grows_gives_the_same_numbers(
    batches: list[list[tuple[int, int]]], expected: int
) -> None:
    small, large = FingerprintTable(200, expected), FingerprintTable(200)
    for batch in batches:
        assert [part.tolist() for part in small.number(_array(batch))] == [
            part.tolist() for part in large.number(_array(batch))
        ]
        assert small.find(_array(batch)).tolist() == large.find(_array(batch)).tolist()


def test_full_table_finds_every_random_fingerprint() -> None:
    prints = np.random.default_rng(1).integers(0, 1 << 63, (5000, 2)).astype(np.uint64)
    table = FingerprintTable(5000)
    assert table.number(prints)[1].tolist() == list(range(5000))
    assert table.find(prints[::-1]).tolist() == list(range(4999, -1, -1))
    assert (table.find(prints + np.uint64(1)) == -1).all()
