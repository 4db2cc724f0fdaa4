"""Values that all layers share."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from crckpt.model import criu_release, utc_datetime


@pytest.mark.parametrize(
    ("seconds", "year"), [(0, 1970), (-(2**40), 2), (-(2**63), 2), (253402300900, 9999), (2**63, 9999)]
)
def test_invalid_time_becomes_the_nearest_valid_year(seconds: int, year: int) -> None:
    assert utc_datetime(seconds).year == year
    assert utc_datetime(seconds).astimezone().tzinfo is not None


def test_present_time_is_unchanged() -> None:
    now = datetime.now(UTC)
    assert utc_datetime(now.timestamp()) == now


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("4.2.1", (4, 2)),
        ("4.2", (4, 2)),
        ("3.17.1-dirty", (3, 17)),
        ("unknown", None),
        ("", None),
        ("4", None),
        ("9" * 5000 + ".1", None),
        ("4." + "9" * 10, None),
    ],
)
def test_release_is_the_first_two_numbers_of_a_version(version: str, release: tuple[int, int] | None) -> None:
    assert criu_release(version) == release
