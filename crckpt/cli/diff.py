"""`crckpt diff`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from crckpt.cli import options
from crckpt.cli.render import Shown, aligned, count, emit, moment, short, size, summary
from crckpt.model import PAGE_SIZE

if TYPE_CHECKING:
    from crckpt.ops.inspect.diff import Difference, Opened, ProcessChange
    from crckpt.ops.inspect.page_changes import MapChange, PageCounts
    from crckpt.store import Checkpoint

_COUNTS = ("changed", "new", "gone")


def diff(
    first: Annotated[str, typer.Argument(help="The checkpoint to begin with: JOB~1, or any other REF.", metavar="A")],
    second: Annotated[str, typer.Argument(help="The checkpoint to compare with it: JOB, or any other.", metavar="B")],
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Say what differs between two checkpoints: processes, threads, files, sockets, and pages of memory by map.

    `+` is what B has and A lacks, `-` what A has and B lacks. A process is the same in both if it has the same PID and
    runs the same program, started once: restored ones are the same still, another program under a PID is not.
    """
    from crckpt.ops.inspect.diff import diff as perform

    result = perform(options.context(store, config=config), first, second)
    document = {
        "first": summary(result.first),
        "second": summary(result.second),
        "come": result.come,
        "gone": result.gone,
        "changed": result.changed,
        "pages": result.pages,
    }
    emit("diff", Shown(document, _lines(result)), as_json=as_json)


def _lines(result: Difference) -> Iterator[str]:
    yield f"from {_title(result.first)} to {_title(result.second)}\n"
    for sign, processes in (("+", result.come), ("-", result.gone)):
        yield from (f"{sign} process {one.pid} {one.comm}, {_pages(one.pages)}\n" for one in processes)
    for change in result.changed:
        yield from _process(change)
    if not (result.come or result.gone or result.changed):
        yield "nothing differs\n"
    elif result.pages:
        yield f"memory: {_counts(result.pages)}\n"


def _title(checkpoint: Checkpoint) -> str:
    return f"{short(checkpoint.id)} ({checkpoint.job}, {moment(checkpoint.created)})"


def _process(change: ProcessChange) -> Iterator[str]:
    yield f"process {change.pid} {change.comm}\n"
    for name in ("comm", "state", "ppid", "exe"):
        before, after = (str(getattr(facts, name)) for facts in (change.before, change.after))
        if before != after:
            yield f"  {name}: {before} -> {after}\n"
    yield from (f"  + thread {tid}\n" for tid in change.threads_come)
    yield from (f"  - thread {tid}\n" for tid in change.threads_gone)
    yield from _descriptors("-", change.closed)
    yield from _descriptors("+", change.opened)
    if change.maps:
        rows = tuple(map(_row, change.maps))
        yield from (f"  {line}" for line in aligned(("map", "", *_COUNTS, "", ""), rows, right=frozenset(_COUNTS)))
    if change.pages:
        yield f"  memory: {_counts(change.pages)}\n"


def _descriptors(sign: str, found: Opened) -> Iterator[str]:
    for file in found.files:
        yield f"  {sign} fd {file.fd} {file.kind} {file.path}{' (deleted)' if file.deleted else ''}\n"
    for socket in found.sockets:
        words = (socket.family, socket.type, socket.protocol, socket.state, socket.local, socket.remote)
        fds = ", ".join(f"fd {holder.fd}" for holder in socket.holders)
        yield f"  {sign} {fds} socket {' '.join(word for word in words if word)}\n"


def _row(change: MapChange) -> tuple[str, ...]:
    pages = change.pages
    numbers = (str(number) if number else "" for number in (pages.changed, pages.new, pages.gone))
    where = f"{change.start:x}-{change.end:x}"
    return (where, change.permissions, *numbers, change.state and f"{change.state} map", change.map)


def _counts(pages: PageCounts) -> str:
    counts = ((pages.changed, "changed"), (pages.new, "new"), (pages.gone, "gone"))
    return ", ".join(f"{what} {_pages(number)}" for number, what in counts if number)


def _pages(number: int) -> str:
    return f"{count(number, 'page')} ({size(number * PAGE_SIZE)})"
