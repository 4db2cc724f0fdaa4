"""The estimated freeze after a round."""

from __future__ import annotations

import pytest

from crckpt.ops.dump.forecast import DumpSpeed, Load, freeze_after_ms
from crckpt.ops.dump.result import RoundResult

MIB = 1 << 20
ROUND = RoundResult(number=1, pages=1, bytes=0, fixed_bytes=4 * MIB, ms=100.0, frozen_ms=10.0)


# The tree had 100 MiB when it was examined. One MiB takes a millisecond, and other objects take no time.
SPEED, LOAD = DumpSpeed(byte_ms=1 / MIB, slowness=0.0, around_ms=50.0), Load(memory=100 * MIB)


@pytest.mark.parametrize(
    ("tracked", "memory_ms"),
    [
        (10 * MIB, 19.0),  # half as much again until CRIU has started
        (90 * MIB, 100.0),  # no more than all of it
        (2000 * MIB, 2004.0),  # unless it has grown since
    ],
)
def test_estimated_freeze_grows_with_the_pages_written_since_a_round(tracked: int, memory_ms: float) -> None:
    assert freeze_after_ms(SPEED, LOAD, ROUND, tracked, 0) == pytest.approx(ROUND.frozen_ms + memory_ms)
