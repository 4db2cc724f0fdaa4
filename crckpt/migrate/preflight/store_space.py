"""Decide on the source whether a move fits into the store of the destination, by a trial of storing some memory."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from crckpt.causes import cause, mebibytes
from crckpt.migrate.preflight.answers import MoveAnswers
from crckpt.migrate.preflight.report import GateReport
from crckpt.ops.dump.examine import DumpTarget
from crckpt.preflight.dump.space import Growth


def judge_store_space(report: GateReport, target: DumpTarget, answers: MoveAnswers, host: str) -> GateReport:
    """Refuse a move that surely does not fit into the store there, and keep the warning of one that may not fit.

    Whatever the store here lacks, the one there lacks, too: those packs are made by the move.
    """
    memory, free = target.observed.memory, answers.store_free
    if free is None or free >= memory or report.blockers:
        return report
    # Rarely needed and slow to import: a trial stores memory.
    from crckpt.ops.dump.growth import try_growth

    growth = try_growth(target.observed, target.job, target.context, memory)
    if growth is None:
        return report
    judged = judge_growth(growth, free)
    if judged == "tight":
        return report
    values = {"needed": mebibytes(growth.least), "free": mebibytes(free), "directory": answers.store}
    full = cause("move-full").finding(**values).word_for("there", peer=host)
    refused = (full,) if judged == "full" else ()
    others = tuple(found for found in report.warnings if found.key != "move-space")
    return replace(report, blockers=refused, warnings=others)


def judge_growth(growth: Growth, free: int) -> Literal["full", "tight", ""]:
    """Return whether a store with `free` bytes surely becomes full, or probably; empty if neither."""
    return "full" if growth.least > free else "tight" if growth.likely > free else ""
