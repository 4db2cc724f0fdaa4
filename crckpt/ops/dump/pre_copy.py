"""Before a dump: copy in rounds while the tree runs, and see beforehand how long the freeze will be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from crckpt.errors import PreflightRefused
from crckpt.ops.dump.examine import Copying, Subject, looked_at_again
from crckpt.ops.dump.forecast import forecast, left_to_freeze
from crckpt.ops.dump.lineage import Copied, Way
from crckpt.ops.dump.request import PreCopy
from crckpt.ops.dump.rounds import take_rounds, why_none
from crckpt.store import Repository, staged

_LITTLE: Final = 32 << 20
"""Bytes that CRIU writes in about the time, 30 ms, that the tree stands still for another round, however small that is
(20 ms at 256 MB, 40 ms at 4 GB). Where nobody says how short the freeze is to be, it is short enough then."""


def pre_copy(subject: Subject, repository: Repository, work: Path, staging: Path) -> Subject:
    """The subject as it is after the rounds that it asks for: they take their time, so it is looked at anew.

    CRIU's logs come to be in `work`, trials of this host's speed go to `staging`. Raises PreflightRefused if too long a
    freeze is foreseen and that is to end it, and what `take_rounds`, `forecast` and `looked_at_again` raise.
    """
    asked, way = subject.request.pre_copy, subject.way
    if asked is None or way is None:
        return subject
    expected_ms = _expectation(subject, way, asked, staging)

    def suffices(last: Copied) -> bool:
        if asked.max_freeze_ms is not None:
            return _fits(asked, expected_ms(last))
        return left_to_freeze(subject.seen.tree.root, way.told.tracker)[0] < _LITTLE

    rounds = take_rounds(subject, way, repository, work, asked.most, suffices)
    is_followed = way.followed is not None and bool(rounds)
    # To measure its memory again would take longer than all else, and meanwhile it writes.
    again = looked_at_again(subject, _to_come(subject, way, rounds[-1]) if is_followed else None)
    expected = expected_ms(rounds[-1] if way.followed is not None else None)
    if asked.abort_over and not _fits(asked, expected):
        kept = "try again, the rounds that were copied are kept; or " if is_followed else ""
        why = "" if is_followed else f"; nothing was copied beforehand: {why_none(way)}"
        raise PreflightRefused(
            f"the tree would be frozen for about {expected:.0f} ms, longer than the {asked.max_freeze_ms:.0f} ms that "
            f"--max-freeze allows{why}",
            hint=f"{kept}allow longer, or leave out --abort-over",
        )
    return replace(again, copying=Copying(rounds, expected, asked.max_freeze_ms))


def _expectation(subject: Subject, way: Way, asked: PreCopy, staging: Path) -> Callable[[Copied | None], float | None]:
    """What tells how many milliseconds a freeze after this round, or of a full dump, would take: if that matters."""
    if asked.max_freeze_ms is None:
        return lambda _: None
    with staged(staging) as place:
        found = forecast(subject.criu.path, place, subject.seen)
    return lambda last: found.full_ms() if last is None else found.after_ms(last, way.told.tracker)


def _to_come(subject: Subject, way: Way, last: Copied) -> int:
    """Bytes that the dump will copy, about: of what is tracked as much again may be written until it has begun."""
    tracked, whole = left_to_freeze(subject.seen.tree.root, way.told.tracker)
    left = tracked + last.fixed_bytes + whole
    return min(left + tracked, max(left, subject.seen.memory))


def _fits(asked: PreCopy, expected_ms: float | None) -> bool:
    return expected_ms is not None and asked.max_freeze_ms is not None and expected_ms <= asked.max_freeze_ms
