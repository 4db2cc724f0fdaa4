"""`crckpt diff`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.format import align, count, size, title
from crckpt.cli.output import checkpoint_document, emit
from crckpt.model import PAGE_SIZE

if TYPE_CHECKING:
    from crckpt.ops.inspect.diff import CheckpointDiff, DescriptorChange, PageChanges, ProcessChange

_COUNTS = ("changed", "new", "gone")


def diff(
    first: str = options.argument("A", "The first checkpoint: JOB~1, or any other REF."),
    second: str = options.argument("B", "The second one: JOB, or any other REF."),
) -> None:
    """Show what differs between two checkpoints: processes, threads, files, sockets, and pages of each memory map.

    `+` marks what only B has, `-` what only A has. A process is the same in both if it has the same PID and is the same
    run of the same program; a restored process is the same process.
    """
    # Slow to load, and needed neither for the help nor to complete a command line.
    from crckpt.ops.inspect.diff import diff as perform

    result = perform(options.make_context(), first, second)
    both = {"first": checkpoint_document(result.first), "second": checkpoint_document(result.second)}
    emit({**asdict(result), **both}, _lines(result), is_answer=True)


def _lines(result: CheckpointDiff) -> Iterator[str]:
    yield f"from {title(result.first)} to {title(result.second)}\n"
    for sign, processes in (("+", result.come), ("-", result.gone)):
        yield from (f"{sign} process {one.pid} {one.comm}, {_pages(one.pages)}\n" for one in processes)
    for change in result.changed:
        yield from _process(change)
    if not (result.come or result.gone or result.changed):
        yield "nothing differs\n"
    elif result.pages:
        yield f"memory: {_counts(result.pages)}\n"


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
        rows = (
            (
                f"{one.start:x}-{one.end:x}",
                one.permissions,
                *(number or "" for number in (one.pages.changed, one.pages.new, one.pages.gone)),
                one.state and f"{one.state} map",
                one.map,
            )
            for one in change.maps
        )
        yield from (f"  {line}" for line in align(("map", "", *_COUNTS, "", ""), rows, " ".join(_COUNTS)))
    if change.pages:
        yield f"  memory: {_counts(change.pages)}\n"


def _descriptors(sign: str, found: DescriptorChange) -> Iterator[str]:
    for file in found.files:
        yield f"  {sign} fd {file.fd} {file.kind} {file.path}{' (deleted)' if file.deleted else ''}\n"
    for socket in found.sockets:
        words = (socket.family, socket.type, socket.protocol, socket.state, socket.local, socket.remote)
        fds = ", ".join(f"fd {holder.fd}" for holder in socket.holders)
        yield f"  {sign} {fds} socket {' '.join(word for word in words if word)}\n"


def _counts(pages: PageChanges) -> str:
    counts = ((pages.changed, "changed"), (pages.new, "new"), (pages.gone, "gone"))
    return ", ".join(f"{what} {_pages(number)}" for number, what in counts if number)


def _pages(number: int) -> str:
    return f"{count(number, 'page')} ({size(number * PAGE_SIZE)})"
