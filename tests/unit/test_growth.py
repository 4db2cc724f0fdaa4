"""Growth of work is measured so that linear work passes, and work that grows faster does not."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable
from functools import partial

import pytest
from growth import grows_linearly

Prepare = Callable[[int], Callable[[], object]]


def nothing(_: int) -> Callable[[], object]:
    return list


def scan(size: int) -> Callable[[], object]:
    return partial(re.findall, "x", "x" * size)


def sort(size: int) -> Callable[[], object]:
    return partial(sorted, [number * 7919 % size for number in range(size)])


def search_sorted(size: int) -> Callable[[], object]:
    return lambda: [bisect.bisect(range(size), number) for number in range(size)]


def compare_all(size: int) -> Callable[[], object]:
    return lambda: sum(first == second for first in range(size) for second in range(size))


def scan_from_each_place(size: int) -> Callable[[], object]:
    return partial(re.search, "x.*y", "x" * size)


def copy_at_each_step(size: int) -> Callable[[], object]:
    def copy() -> None:
        rest = bytes(1000 * size)
        while rest:
            rest = rest[1000:]

    return copy


def try_all_subsets(size: int) -> Callable[[], object]:
    return partial(re.fullmatch, "(x+)+", "x" * size + "y")


@pytest.mark.parametrize(("prepare", "size"), [(nothing, 8), (scan, 80_000), (sort, 20_000), (search_sorted, 8000)])
def test_work_that_takes_linear_time_passes_the_check(prepare: Prepare, size: int) -> None:
    assert grows_linearly(prepare, size)


@pytest.mark.parametrize(
    ("prepare", "size"),
    [(compare_all, 240), (scan_from_each_place, 4000), (copy_at_each_step, 1000), (try_all_subsets, 16)],
)
def test_work_that_takes_more_than_linear_time_fails_the_check(prepare: Prepare, size: int) -> None:
    assert not grows_linearly(prepare, size)
