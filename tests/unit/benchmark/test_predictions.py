"""The benchmark's verdict on predictions."""

from __future__ import annotations

import math

import pytest
from benchmark.predictions import factor, nine_of_ten
from benchmark.report import Row, format_amount


@pytest.mark.parametrize(
    ("ours", "came", "far"), [(1.0, 1.0, 1.0), (3.0, 1.0, 3.0), (1.0, 4.0, 4.0), (0.0, 1.0, math.inf)]
)
def test_predicting_half_or_twice_the_time_has_the_same_error_factor(ours: float, came: float, far: float) -> None:
    assert factor(Row("predictions", "a tree: dump time", "s", (ours,), "the dump", (came,))) == far


def test_nine_of_ten_ignores_one_outlier_in_ten() -> None:
    assert nine_of_ten([1.0] * 9 + [9.0]) == 1.0
    assert nine_of_ten([1.0] * 8 + [9.0, 9.0]) == 9.0
    assert nine_of_ten([9.0, 1.0, 2.0, *[1.0] * 16]) == 2.0
    assert format_amount(1.234, "x") == "1.23"
