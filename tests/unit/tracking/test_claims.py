"""A process has one tracker at a time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from crckpt.host.proc import Identity
from crckpt.tracking.tracker import Claims


def test_claim_does_not_cover_a_reused_pid(claims: Path) -> None:
    earlier, later = (Identity("", 4194303, start) for start in (1 << 40, (1 << 40) + 1))
    with closing(Claims(claims)) as one, closing(Claims(claims)) as other:
        assert one.claim(earlier)
        assert not other.claim(earlier)
        assert other.claim(later)
        one.give_up(earlier)
        assert other.claim(earlier)
