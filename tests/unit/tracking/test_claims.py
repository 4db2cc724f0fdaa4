"""A process has one tracker at a time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from crckpt.tracking.claims import Claims


def test_a_claim_is_not_on_who_gets_the_pid_next(claims: Path) -> None:
    with closing(Claims(claims)) as one, closing(Claims(claims)) as other:
        assert one.claim(4194303, 1 << 40)
        assert not other.claim(4194303, 1 << 40)
        assert other.claim(4194303, (1 << 40) + 1)
        one.give_up(4194303, 1 << 40)
        assert other.claim(4194303, 1 << 40)
