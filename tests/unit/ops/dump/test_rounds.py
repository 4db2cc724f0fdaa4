"""Rounds go on until one fits, or the next would leave no less to the freeze; what they copied is made up."""

from __future__ import annotations

from crckpt.model import PAGE_SIZE
from crckpt.ops.dump.result import RoundResult
from crckpt.ops.dump.rounds import worthwhile_rounds


def rounds(*pages: int, most: int = 8, fit: int = 0, fixed: int = 0) -> list[int]:
    """Pages of the rounds that are taken of a tree of which each would copy so many; one of up to `fit` fits."""
    each = (
        RoundResult(number, count, count * PAGE_SIZE, fixed * PAGE_SIZE, ms=1.0, frozen_ms=1.0)
        for number, count in enumerate(pages, 1)
    )
    return [one.pages for one in worthwhile_rounds(lambda: next(each), most, lambda copied: copied.pages <= fit)]


def test_rounds_of_a_dump_end_when_few_pages_are_left() -> None:
    assert rounds(100_000, 10_000, 1_000, 511, 1) == [100_000, 10_000, 1_000, 511]


def test_tree_that_writes_as_fast_as_it_is_copied_gets_two_rounds() -> None:
    assert rounds(100_000, 100_000, 100_000) == [100_000, 100_000]
    assert rounds(100_000, 80_001, 1_000) == [100_000, 80_001]
    assert rounds(100_000, 80_000, 64_001, 1_000) == [100_000, 80_000, 64_001]


def test_pages_copied_in_every_round_do_not_count() -> None:
    assert rounds(6_000, 5_600, 5_500, 1, fixed=5_000) == [6_000, 5_600, 5_500]


def test_rounds_end_when_one_fits_or_at_the_limit() -> None:
    assert rounds(100_000, 10_000, 5_000, 1_000, fit=10_000) == [100_000, 10_000]
    assert rounds(100_000, 10_000, 5_000, 1_000, most=1) == [100_000]
    assert rounds(100_000, most=0) == []
