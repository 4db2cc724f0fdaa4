"""Copy memory in rounds before a dump while the tree runs, and estimate how long the freeze will be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from crckpt.errors import PreflightRefused
from crckpt.ops.dump.examine import DumpTarget, examine_again
from crckpt.ops.dump.forecast import bytes_left, forecast_freeze
from crckpt.ops.dump.launch import Workspace
from crckpt.ops.dump.lineage import Lineage
from crckpt.ops.dump.request import PreCopy
from crckpt.ops.dump.result import PreCopyResult, RoundResult
from crckpt.ops.dump.rounds import take_rounds
from crckpt.store import staged

# Bytes that CRIU writes in about 30 ms. For so long the tree stands still for another round, however small (20 ms at
# 256 MB, 40 ms at 4 GB). If no limit of the freeze is asked for, it is short enough then.
_LITTLE: Final = 32 << 20


def pre_copy(target: DumpTarget, workspace: Workspace) -> DumpTarget:
    """Take the rounds that are asked for. The target as its tree is after them.

    Raises PreflightRefused if the estimated freeze is too long and --abort-over was given, and what `take_rounds`,
    `forecast_freeze` and `examine_again` raise.
    """
    asked, lineage = target.request.pre_copy, target.lineage
    if asked is None or lineage is None:
        return target
    estimate_ms = _make_estimate(target, lineage, asked, workspace.staging)

    def suffices(last: RoundResult) -> bool:
        if asked.max_freeze_ms is not None:
            return _fits(asked, estimate_ms(last))
        return bytes_left(target.observed.tree.root, lineage.summary.tracker)[0] < _LITTLE

    rounds = take_rounds(target, lineage, workspace.repository, workspace.work, asked.max_rounds, suffices)
    is_tracked = lineage.keeper is not None and bool(rounds)
    # Measuring the tree's memory again would take longer than everything else, and meanwhile the tree writes.
    again = examine_again(target, _estimate_dump(target, lineage, rounds[-1]) if is_tracked else None)
    estimated_ms = estimate_ms(rounds[-1] if lineage.keeper is not None else None)
    # The last moment at which nothing was frozen for longer than a round.
    if asked.abort_over and not _fits(asked, estimated_ms):
        kept = "try again (the copied rounds are kept), or " if is_tracked else ""
        why = "" if is_tracked else f"; no rounds were copied: {lineage.summary.why_full}"
        raise PreflightRefused(
            f"the tree would be frozen for about {estimated_ms:.0f} ms, over the budget of {asked.max_freeze_ms:.0f} "
            f"ms (--max-freeze){why}",
            hint=f"{kept}allow a longer freeze: --max-freeze TIME; without --abort-over the dump goes on all the same",
        )
    return replace(again, pre_copy=PreCopyResult(rounds, estimated_ms, asked.max_freeze_ms))


def _make_estimate(
    target: DumpTarget, lineage: Lineage, asked: PreCopy, staging: Path
) -> Callable[[RoundResult | None], float | None]:
    """A function that estimates the freeze after a round, or of a full dump, in milliseconds; None without a limit."""
    if asked.max_freeze_ms is None:
        return lambda _: None
    with staged(staging) as place:
        forecast = forecast_freeze(target.criu.path, place, target.observed)
    return lambda last: forecast.full_ms() if last is None else forecast.after_ms(last, lineage.summary.tracker)


def _estimate_dump(target: DumpTarget, lineage: Lineage, last: RoundResult) -> int:
    """Bytes that the dump will copy: what is left now, and as much again for tracked memory written until it begins."""
    tracked, whole = bytes_left(target.observed.tree.root, lineage.summary.tracker)
    left = tracked + last.fixed_bytes + whole
    return min(left + tracked, max(left, target.observed.memory))


def _fits(asked: PreCopy, estimated_ms: float | None) -> bool:
    return estimated_ms is not None and asked.max_freeze_ms is not None and estimated_ms <= asked.max_freeze_ms
