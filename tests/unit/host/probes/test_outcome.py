"""A fact has a state, words and a fix; sizes are for people."""

from __future__ import annotations

import pytest

from crckpt.host.probes.trial import Fact, free_of, limited, missing, ok


def test_result_of_a_check_has_one_of_three_states() -> None:
    found = missing("found", "consequence", "command", safe=True)
    assert found == Fact("", "missing", "found", "consequence", "command", True)
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
def test_free_and_total_amount_are_printed_in_the_same_unit(free: int, total: int, expected: str) -> None:
    assert free_of(free, total) == expected
