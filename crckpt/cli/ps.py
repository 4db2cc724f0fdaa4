"""`crckpt ps`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.format import align, cut, duration, local_time, short_id, size, terminal_width
from crckpt.cli.output import emit
from crckpt.ops.ps import KeeperUsage, Listing, end_trackers, list_processes
from crckpt.tracking.dump_basis import RoundBase

_PROGRAM_WIDTH: Final = 40


def ps(
    end: str | None = options.option(
        "--end TARGET", "End the tracker of this tree: PID, pidfile:PATH, unit:NAME, cgroup:PATH, or `all`."
    ),
) -> None:
    """List crckpt's processes and locks on this host, with their users, their start, and what ends them.

    Some processes outlive the command that started them: for example a tracker, which `crckpt dump --incremental`,
    `crckpt dump --pre-copy` and `crckpt pre-dump` start, and which ends with its tree. To end a tracker earlier does no
    harm: the next dump is full.
    """
    # Only root can dump and restore, so all are root's.
    options.require_root("to list crckpt's processes")
    result = list_processes() if end is None else end_trackers(end)
    trackers = [{**asdict(each.keeper), "why": each.keeper.sentence, "usage": each.usage} for each in result.trackers]
    lines = _list(result) if end is None else _list_ended(result)
    emit({**asdict(result), "trackers": trackers}, lines, is_answer=end is None)


def _list(result: Listing) -> Iterator[str]:
    yield from (f"{failure}\n" for failure in result.unanswered)
    if not result.processes:
        yield "no other process of crckpt runs\n" if result.unanswered else "no process of crckpt runs\n"
    else:
        trackers = {each.keeper.pid: each for each in result.trackers}
        rows = (
            (
                *(each.pid, each.kind, each.tree or "", each.user, local_time(each.started), each.ends),
                *(duration(each.cpu_s * 1000), size(each.memory_bytes)),
                # The command line of CRIU would push what follows off the screen.
                cut(each.program, _PROGRAM_WIDTH) if terminal_width() else each.program,
                _describe(trackers[each.pid]) if each.pid in trackers else "",
            )
            for each in result.processes
        )
        titles = ("pid", "kind", "tree", "user", "since", "ends with", "cpu", "memory", "program", "counts from")
        yield from _cut(align(titles, rows, "pid tree cpu memory"))
    if result.locks:
        yield "\n"
        locks = ((each.name, each.pid or "", each.ends) for each in result.locks)
        yield from _cut(align(("lock", "pid", "ends with"), locks, "pid"))


def _list_ended(result: Listing) -> Iterator[str]:
    if not result.trackers:
        yield "no tree is tracked\n"
        return
    rows = ((each.keeper.root, each.keeper.comm, each.keeper.pid) for each in result.trackers)
    yield from align(("tree", "program", "tracker"), rows, "tree")
    yield "crckpt no longer tracks these trees\n"


def _cut(lines: Iterator[str]) -> Iterator[str]:
    # What may be too long for a terminal is at the end of the line.
    width = terminal_width()
    return (f"{cut(line.rstrip(), width)}\n" for line in lines) if width else lines


def _describe(tracker: KeeperUsage) -> str:
    base = tracker.keeper.counts_from
    if isinstance(base, RoundBase):
        counted = f"round {base.number}"
    else:
        counted = "none: the next dump is full" if base is None else short_id(base.id)
    return f"{counted}; {tracker.keeper.sentence}"
