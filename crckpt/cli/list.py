"""`crckpt list`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.format import align, creation_time, duration, local_time, short_id, size
from crckpt.cli.output import Output, checkpoint_document, emit
from crckpt.ops.list import ListedCheckpoint, Listing
from crckpt.ops.list import list_checkpoints as perform
from crckpt.store import PendingCheckpoint

_COLUMNS = ("id", "job", "created", "procs", "frozen", "raw", "new", "stored", "tags, note")
_NUMBERS = frozenset({"procs", "frozen", "raw", "new", "stored"})


def list_checkpoints(
    job: Annotated[str | None, typer.Argument(help="List this job only.", metavar="JOB", show_default="all")] = None,
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """List checkpoints, oldest first: when each was made, how long its tree was frozen, how many bytes it added.

    Columns: **frozen** is how long the tree stood still, **raw** the size of CRIU's images, **new** the data that the
    store did not have before, **stored** how much the store grew. A checkpoint whose date is later than now is marked
    "in the future": the clock was wrong then, or is wrong now.
    """
    listing = perform(options.make_context(store, config=config), job)
    document = {
        "checkpoints": ({**checkpoint_document(entry.checkpoint), "tags": entry.tags} for entry in listing.entries),
        "pending": (
            {**asdict(pending), "state": "lost" if pending.lost else "committing"} for pending in listing.pending
        ),
        "unreadable": listing.unreadable,
    }
    emit("list", Output(document, _lines(listing)), as_json=as_json)


def _lines(listing: Listing) -> Iterator[str]:
    for bad in listing.unreadable:
        yield f"{bad.why}: {bad.remedy}\n"
    rows = (*map(_row, listing.entries), *map(_pending_row, listing.pending))
    if rows:
        yield from align(_COLUMNS, rows, right=_NUMBERS)
    else:
        yield "no checkpoints yet; make one with: crckpt dump PID JOB\n"


def _row(entry: ListedCheckpoint) -> tuple[str, ...]:
    checkpoint, numbers = entry.checkpoint, entry.checkpoint.statistics
    return (
        short_id(checkpoint.id),
        checkpoint.job,
        creation_time(checkpoint),
        str(len(checkpoint.tree)),
        duration(numbers.frozen_ms),
        size(numbers.raw_bytes),
        size(numbers.new_bytes),
        size(numbers.stored_bytes),
        " ".join((*entry.tags, checkpoint.note or "")),
    )


def _pending_row(pending: PendingCheckpoint) -> tuple[str, ...]:
    state = "lost" if pending.lost else "committing"
    note = f"{pending.lost}; to remove this line: crckpt gc" if pending.lost else f"PID {pending.pid} stores it"
    return (state, pending.job, local_time(pending.created), *[""] * len(_NUMBERS), note)
