"""`crckpt trackers`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.format import align, cut, duration, local_time, short_id, size, terminal_width
from crckpt.cli.output import Output, emit
from crckpt.ops.trackers import KeeperUsage, Trackers
from crckpt.ops.trackers import trackers as perform
from crckpt.tracking.dump_basis import Base, RoundBase


def trackers(
    end: str | None = options.option(
        "--end TARGET", "End the tracker of this tree: PID, pidfile:PATH, unit:NAME, cgroup:PATH, or `all`."
    ),
    as_json: bool = options.AS_JSON,
) -> None:
    """List the trees that are tracked for incremental dumps. Each has a small process, the keeper, that tracks it.

    `crckpt dump --incremental`, `crckpt dump --pre-copy` and `crckpt pre-dump` start a tracker. It ends with its tree.
    Ending it earlier does no harm: the next dump is full.
    """
    # Only root can dump, so all keepers are root's.
    options.require_root("to list the trees that are tracked")
    result = perform(end)
    document = {
        "trackers": [
            {**asdict(each.keeper), "why": each.keeper.sentence, "usage": each.usage} for each in result.trackers
        ],
        "ended": result.ended,
        "unanswered": result.unanswered,
    }
    emit("trackers", Output(document, _lines(result), is_answer=end is None), as_json=as_json)


def _lines(result: Trackers) -> Iterator[str]:
    yield from (f"{failure}\n" for failure in result.unanswered)
    if not result.trackers:
        yield "no other tree is tracked\n" if result.unanswered else "no tree is tracked\n"
        return
    titles = ("tree", "program", "keeper", "since", "cpu", "memory", "base", "tracker")
    lines = align(titles, map(_row, result.trackers), right=frozenset({"tree", "cpu", "memory"}))
    # What may be too long for a terminal is why there is this tracker, at the end of the line.
    width = terminal_width()
    yield from (f"{cut(line.rstrip(), width)}\n" for line in lines) if width else lines
    if result.ended:
        yield "crckpt no longer tracks these trees\n"


def _row(tracker: KeeperUsage) -> tuple[str, ...]:
    keeper, usage = tracker.keeper, tracker.usage
    used = ("", "", "")
    if usage is not None:
        used = (local_time(usage.started), duration(usage.cpu_s * 1000), size(usage.memory_bytes))
    return (
        str(keeper.root),
        keeper.comm,
        str(keeper.pid),
        *used,
        _base(keeper.counts_from),
        f"{keeper.tracker} ({keeper.why})",
    )


def _base(base: Base | None) -> str:
    if isinstance(base, RoundBase):
        return f"round {base.number}"
    return "none: the next dump is full" if base is None else short_id(base.id)
