"""A process has one tracker at a time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from crckpt.host.proc import Identity
from crckpt.tracking.tracker import Claims


def test_claim_on_a_process_does_not_cover_a_reused_pid(claims: Path) -> None:
    earlier, later = (Identity("", 4194303, start) for start in (1 << 40, (1 << 40) + 1))
    with closing(Claims(claims)) as first_claims, closing(Claims(claims)) as second_claims:
        assert first_claims.claim(earlier)
        assert not second_claims.claim(earlier)
        assert second_claims.claim(later)


def test_claim_on_a_process_that_was_given_up_is_free(claims: Path) -> None:
    process = Identity("", 4194303, 1 << 40)
    with closing(Claims(claims)) as first_claims, closing(Claims(claims)) as second_claims:
        assert first_claims.claim(process)
        first_claims.give_up(process)
        assert second_claims.claim(process)
