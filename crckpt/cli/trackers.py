"""`crckpt trackers`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.format import align, short_id
from crckpt.cli.output import Output, emit
from crckpt.ops.trackers import Trackers
from crckpt.ops.trackers import trackers as perform
from crckpt.tracking.dump_basis import Base, RoundBase


def trackers(
    end: Annotated[
        str | None,
        typer.Option(
            "--end", help="End the tracker of this tree: PID, pidfile:PATH, unit:NAME, cgroup:PATH, or `all`."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the trees that are tracked for incremental dumps. Each has a small process, the keeper, that tracks it.

    `crckpt dump --incremental`, `crckpt dump --pre-copy` and `crckpt pre-dump` start a tracker. It ends with its tree.
    Ending it earlier does no harm: the next dump is full.
    """
    options.require_root("to list the trees that are tracked")
    result = perform(end)
    document = {
        "trackers": [asdict(keeper) for keeper in result.keepers],
        "ended": result.ended,
        "unanswered": result.unanswered,
    }
    emit("trackers", Output(document, _lines(result)), as_json=as_json)


def _lines(result: Trackers) -> Iterator[str]:
    yield from (f"{failure}\n" for failure in result.unanswered)
    if not result.keepers:
        yield "no other tree is tracked\n" if result.unanswered else "no tree is tracked\n"
        return
    rows = [(str(each.root), each.comm, str(each.pid), _base(each.counts_from), each.why) for each in result.keepers]
    titles = ("tree", "program", "keeper", "base", "tracker")
    yield from align(titles, rows, right=frozenset(titles[:1]))
    if result.ended:
        yield "these trees are no longer tracked\n"


def _base(base: Base | None) -> str:
    if isinstance(base, RoundBase):
        return f"round {base.number}"
    return "none: the next dump is full" if base is None else short_id(base.id)
