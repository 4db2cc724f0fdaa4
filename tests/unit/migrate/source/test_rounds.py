"""The estimated downtime, and when rounds end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from crckpt.errors import PreflightRefused
from crckpt.migrate.request import MigrateRequest
from crckpt.migrate.source.rounds import Downtime, Round, check_budget, estimate_downtime, explain_end

MIB = 1 << 20
REQUEST = MigrateRequest("812", "node2")
FIRST = Round(
    raw_bytes=256 * MIB,
    sent_bytes=100 * MIB,
    dump_s=0.8,
    frozen_s=0.03,
    store_s=0.4,
    send_s=1.0,
    since_last_s=None,
    since_s=1.5,
)
SECOND = Round(
    raw_bytes=30 * MIB,
    sent_bytes=10 * MIB,
    dump_s=0.25,
    frozen_s=0.02,
    store_s=0.1,
    send_s=0.9,
    since_last_s=1.5,
    since_s=1.0,
)
SHORT, LONG = Downtime(0.01, 0.3), Downtime(0.9, 0.3)


def test_write_rate_of_a_program_is_known_from_the_second_round() -> None:
    assert FIRST.written_per_s is None
    assert SECOND.written_per_s == 20 * MIB


def test_pages_written_meanwhile_count_towards_the_downtime() -> None:
    """20 of the 30 MiB of the last round were written during it. To copy them takes two thirds of the round's time."""
    downtime = estimate_downtime([FIRST, SECOND], SECOND.written_per_s)
    assert downtime.written_s == pytest.approx(2 / 3 * 1.0)
    slower = replace(SECOND, send_s=9.0, since_s=9.1)
    assert estimate_downtime([FIRST, slower], slower.written_per_s).written_s > 9 * downtime.written_s


def test_first_estimate_assumes_that_all_pages_are_written_again() -> None:
    """Without a rate, all pages may have been written again, but no more than exist."""
    for rate in (None, 1e12):
        assert estimate_downtime([FIRST], rate).written_s == FIRST.store_s + FIRST.send_s
    assert estimate_downtime([FIRST], 0.0).written_s == 0
    nothing = replace(FIRST, raw_bytes=0)
    assert estimate_downtime([nothing], 5.0).written_s == 0


def test_freeze_estimate_is_the_shortest_round() -> None:
    """A round that copied much was frozen for longer, which does not predict the hand-over or the restore."""
    long = replace(SECOND, frozen_s=0.2 + SECOND.frozen_s, dump_s=0.2 + SECOND.dump_s)
    usual = estimate_downtime([SECOND, SECOND], 0.0)
    assert estimate_downtime([SECOND, long], 0.0).fixed_s == pytest.approx(usual.fixed_s)
    assert estimate_downtime([long], 0.0).fixed_s > estimate_downtime([SECOND], 0.0).fixed_s


def test_time_to_store_a_round_counts_towards_the_downtime() -> None:
    slow = replace(FIRST, store_s=10 + FIRST.store_s)
    busy = replace(SECOND, dump_s=5 + SECOND.dump_s)
    assert estimate_downtime([FIRST, busy], 0.0).fixed_s > 5
    difference = estimate_downtime([slow, SECOND], 0.0).fixed_s - estimate_downtime([FIRST, SECOND], 0.0).fixed_s
    assert difference > 1
    lazy = [estimate_downtime([first, SECOND], 0.0, is_lazy=True) for first in (slow, FIRST)]
    assert lazy[0] == lazy[1]


@pytest.mark.parametrize(
    ("request_", "rounds", "downtime", "why"),
    [
        (REQUEST, [FIRST], SHORT, ""),
        (REQUEST, [FIRST, SECOND], LONG, ""),
        (REQUEST, [FIRST, SECOND], SHORT, "little was left to copy"),
        # Two rounds of the same size: the third shows whether they shrink.
        (REQUEST, [FIRST, FIRST], LONG, ""),
        (REQUEST, [FIRST, SECOND, replace(SECOND, raw_bytes=20 * MIB)], LONG, ""),
        (
            REQUEST,
            [FIRST, SECOND, replace(SECOND, raw_bytes=25 * MIB)],
            LONG,
            "the program writes memory as fast as rounds copy it: 25 MiB in 1.0 s; the connection takes 11 MiB per "
            "second",
        ),
        (REQUEST, [FIRST, SECOND, SECOND], Downtime(0.1, 0.3), "little was left to copy"),
        (
            REQUEST,
            [FIRST, SECOND, replace(SECOND, send_s=0.1)],
            LONG,
            "the program writes memory as fast as rounds copy it: 30 MiB in 1.0 s",
        ),
        (replace(REQUEST, max_rounds=2), [FIRST, SECOND], LONG, "--max-rounds is reached"),
        (replace(REQUEST, max_downtime_ms=400), [FIRST], SHORT, "the estimated downtime is within --max-downtime"),
        (replace(REQUEST, max_downtime_ms=300), [FIRST, SECOND], LONG, ""),
    ],
)
def test_rounds_of_a_move_end_with_a_reason(
    request_: MigrateRequest, rounds: list[Round], downtime: Downtime, why: str
) -> None:
    assert explain_end(request_, rounds, downtime, 11.0 * MIB) == why


def test_move_with_an_estimated_downtime_over_the_budget_is_refused() -> None:
    budget = replace(REQUEST, max_downtime_ms=300)
    check_budget(budget, LONG)
    check_budget(replace(budget, abort_over=True, max_downtime_ms=1300), LONG)
    with pytest.raises(PreflightRefused, match="the estimated downtime is 1200 ms, over the budget of 300 ms"):
        check_budget(replace(budget, abort_over=True), LONG)
