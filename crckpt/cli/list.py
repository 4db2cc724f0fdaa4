"""`crckpt list`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.format import align, cut, duration, local_time, on_one_line, short_id, size, terminal_width
from crckpt.cli.migrate_output import describe_move, move_document
from crckpt.cli.output import checkpoint_document, emit, pick, utc_seconds
from crckpt.ops.list import ListedCheckpoint, Listing
from crckpt.ops.list import list_checkpoints as perform
from crckpt.store import PendingCheckpoint

_NOTE: Final = "tags, note"
_COLUMNS: Final[tuple[str, ...]] = ("id", "job", "created", "procs", "frozen", "raw", "new", "stored", _NOTE)
_NUMBERS: Final = "procs frozen raw new stored"
# What a narrow terminal does without first.
_LEAST_NEEDED: Final = ("raw", "new", "procs", "frozen")
# A shorter note would tell nothing.
_SHORTEST_NOTE: Final = 16
_MINUTES: Final = len("2026-11-25 22:49")


def list_checkpoints(
    job: str | None = options.argument("JOB", "List this job only.", default=None, shown="all"),
) -> None:
    """List checkpoints, oldest first: when each was made, how long its tree was frozen, how many bytes it added.

    Columns: **frozen** is how long the tree stood still, **raw** the size of CRIU's images, **new** the data that the
    store did not have before, **stored** how much the store grew. A narrow terminal shows only some of them; **--json**
    has all. A checkpoint whose date is later than now is marked "in the future": the clock was wrong then, or is wrong
    now. Checkpoints of a program that is being moved to another host, or was moved there, are marked with that host;
    those that the last `crckpt verify` found damaged are marked, too.
    """
    listing = perform(options.make_context(), job)
    document = {
        # A generator: without --json nothing is made of it.
        "checkpoints": (
            {
                **checkpoint_document(entry.checkpoint),
                **pick(entry, "tags", "damaged"),
                "move": entry.move and move_document(entry.move),
            }
            for entry in listing.entries
        ),
        "pending": (
            {
                **asdict(pending),
                "created_utc": utc_seconds(pending.created),
                "state": "lost" if pending.lost else "committing",
            }
            for pending in listing.pending
        ),
        "unreadable": listing.unreadable,
    }
    emit(document, _lines(listing), is_answer=True)


def _lines(listing: Listing) -> Iterator[str]:
    for bad in listing.unreadable:
        yield f"{bad.why}: {bad.remedy}\n"
    rows = [*map(_row, listing.entries), *map(_pending_row, listing.pending)]
    if not rows:
        yield "no checkpoints yet; make one with: crckpt dump PID JOB\n"
        return
    titles, rows = _fit(rows, terminal_width())
    yield from align(titles, rows, _NUMBERS)
    for pending in listing.pending:
        if pending.lost:
            yield f"lost: a checkpoint of {pending.job}: {pending.lost}; to remove this line: crckpt gc\n"


def _fit(rows: list[tuple[str, ...]], width: int | None) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The titles and rows that fit into so many columns: without seconds, then without some numbers; notes are cut."""
    if width is None:
        return _COLUMNS, rows
    texts = dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))
    widths = {title: max(len(title), *(len(on_one_line(text)) for text in texts[title])) for title in _COLUMNS}

    def room_for_notes() -> int:
        return width - sum(number + 2 for title, number in widths.items() if title != _NOTE)

    needed = min(widths[_NOTE], _SHORTEST_NOTE)
    if room_for_notes() < widths[_NOTE]:
        texts["created"], widths["created"] = tuple(text[:_MINUTES] for text in texts["created"]), _MINUTES
    for title in _LEAST_NEEDED:
        if room_for_notes() < needed:
            del texts[title], widths[title]
    left = max(needed, room_for_notes())
    texts[_NOTE] = tuple(cut(on_one_line(text), left) for text in texts[_NOTE])
    return tuple(texts), list(zip(*texts.values(), strict=True))


def _row(entry: ListedCheckpoint) -> tuple[str, ...]:
    checkpoint, numbers = entry.checkpoint, entry.checkpoint.statistics
    future = "(in the future)" if checkpoint.is_in_future(datetime.now(UTC)) else ""
    damaged = "(damaged)" if entry.damaged else ""
    moved = f"({describe_move(entry.move)})" if entry.move else ""
    return (
        short_id(checkpoint.id),
        checkpoint.job,
        local_time(checkpoint.created),
        str(len(checkpoint.tree)),
        duration(numbers.frozen_ms),
        size(numbers.raw_bytes),
        size(numbers.new_bytes),
        size(numbers.stored_bytes),
        " ".join(filter(None, (damaged, moved, future, *entry.tags, checkpoint.note))),
    )


def _pending_row(pending: PendingCheckpoint) -> tuple[str, ...]:
    state = "lost" if pending.lost else "committing"
    note = f"PID {pending.pid} stores it"
    if pending.lost:
        note = "see below"
    elif pending.host:
        note = f"PID {pending.pid} of {pending.host} stores it, or has ended"
    return (state, pending.job, local_time(pending.created), *[""] * len(_NUMBERS.split()), note)
