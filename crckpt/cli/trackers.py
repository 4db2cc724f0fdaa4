"""`crckpt trackers`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.render import Shown, aligned, emit, short


def trackers(
    end: Annotated[
        str | None,
        typer.Option("--end", help="Follow this tree no longer: PID, pidfile:PATH, unit:NAME, cgroup:PATH, or `all`."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the trees that are tracked from one checkpoint to the next, each by a small process.

    `crckpt dump --incremental` starts it, as do `--pre-copy` and `crckpt pre-dump`; it ends with its tree. To end it
    sooner harms nothing: the next checkpoint is full.
    """
    from crckpt.ops.trackers import trackers as perform

    result = perform(end)

    def text() -> Iterator[str]:
        yield from (f"{said}\n" for said in result.unanswered)
        if not result.keepers:
            yield "no other tree is tracked\n" if result.unanswered else "no tree is tracked\n"
            return
        rows = [(str(one.root), one.comm, str(one.pid), _base(one.base), one.why) for one in result.keepers]
        titles = ("tree", "program", "keeper", "base", "tracker")
        yield from aligned(titles, rows, right=frozenset(titles[:1]))
        if result.ended:
            yield "they are tracked no longer\n"

    document = {
        "trackers": [asdict(one) for one in result.keepers],
        "ended": result.ended,
        "unanswered": result.unanswered,
    }
    emit("trackers", Shown(document, text()), as_json=as_json)


def _base(name: str) -> str:
    if "/" in name:
        return f"round {name.rpartition('/')[2]}"
    return short(name) or "none: the next dump is full"
