"""A fact has everything of an outcome, under its key; sizes are for people."""

from __future__ import annotations

import pytest

from crckpt.host.probes.trial import Fact, fact, free_of, limited, missing, ok


def test_check_is_an_outcome_with_a_key() -> None:
    outcome = limited("found", "consequence", "command", safe=True)
    assert fact("key", outcome) == Fact("key", "limited", "found", "consequence", "command", True)
    assert [each.state for each in (ok("x"), limited("x", "y"), missing("x", "y"))] == ["ok", "limited", "missing"]
    assert not missing("x", "y", "rm -r /").safe


@pytest.mark.parametrize(
    ("free", "total", "expected"),
    [
        (1 << 30, 1 << 31, "1.0 GiB free of 2.0"),
        (1 << 29, 1 << 30, "0.5 GiB free of 1.0"),
        (3 << 19, (1 << 30) - 1, "1.5 MiB free of 1024.0"),
        (0, 1 << 20, "0.0 MiB free of 1.0"),
    ],
)
def test_free_and_total_have_one_unit(free: int, total: int, expected: str) -> None:
    assert free_of(free, total) == expected
