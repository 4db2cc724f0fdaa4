"""`crckpt list`, `tag`, `rm` and `gc`: what concerns checkpoints as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.render import Shown, aligned, count, duration, emit, made, moment, short, size, summary

if TYPE_CHECKING:
    from rich.console import Console

    from crckpt.ops.list import Entry, Listing
    from crckpt.store import Pending

_COLUMNS = ("id", "job", "created", "procs", "frozen", "raw", "new", "stored", "tags, note")
_SIZES = frozenset({"procs", "frozen", "raw", "new", "stored"})


def list_checkpoints(
    job: Annotated[str | None, typer.Argument(help="Only this series.", show_default="all")] = None,
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """List checkpoints in the order in which they were stored: time, length of the freeze, bytes that each added.

    `in the future` marks a time after now: the clock was wrong then, or is now. JOB still names the last one.
    """
    from crckpt.ops.list import list_checkpoints as perform

    listing = perform(options.context(store, config=config), job)

    document = {
        "checkpoints": ({**summary(entry.checkpoint), "tags": entry.tags} for entry in listing.entries),
        "pending": ({**asdict(one), "state": "lost" if one.lost else "committing"} for one in listing.pending),
        "unreadable": listing.unreadable,
    }
    emit("list", Shown(document, _lines(listing)), as_json=as_json)


def tag(
    ref: options.Ref,
    name: Annotated[str, typer.Argument(help="The tag: letters, digits, `.`, `_`, `-`.", metavar="TAG")],
    remove: Annotated[bool, typer.Option("--remove", help="Take the tag away from REF instead.")] = False,
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Give a checkpoint a name, so that JOB:TAG means it. A tag that the job has already moves."""
    from crckpt.ops.tag import tag as perform

    result = perform(options.context(store, config=config), ref, name, remove=remove)

    def text(console: Console) -> None:
        if remove:
            console.print(f"{result.job}:{result.tag} is taken away")
        else:
            console.print(f"{result.job}:{result.tag} is {short(result.id)}")

    emit("tag", Shown(result, text), as_json=as_json)


def remove(
    refs: Annotated[list[str], typer.Argument(help="Checkpoints to remove.", metavar="REF...")],
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove checkpoints. The others lose nothing; space comes back with `crckpt gc`.

    If a tree was stopped with its TCP connections kept, their packets are dropped until it is restored; removing its
    checkpoint gives it up, so that the lock is lifted too.
    """
    from crckpt.ops.rm import rm

    result = rm(options.context(store, config=config), tuple(refs))

    def text(console: Console) -> None:
        for gone in result.removed:
            console.print(f"removed {short(gone)}")
        for table in result.lifted_locks:
            console.print(f"lifted the network lock of the stopped tree (nftables: table inet {table})")
        console.print("its space comes back with: crckpt gc")

    emit("rm", Shown(result, text), as_json=as_json)


def collect_garbage(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed; remove nothing.")] = False,
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove what no checkpoint needs any more, and what interrupted dumps left behind."""
    from crckpt.ops.gc import gc

    result = gc(options.context(store, config=config), dry_run=dry_run)

    def text(console: Console) -> None:
        verb = "would free" if dry_run else "freed"
        what = f"{count(len(result.packs), 'pack')}, {count(len(result.leftovers), 'leftover')}"
        console.print(f"{verb} {size(result.bytes)}: {what}")

    emit("gc", Shown({**asdict(result), "dry_run": dry_run}, text), as_json=as_json)


def _lines(listing: Listing) -> Iterator[str]:
    for bad in listing.unreadable:
        yield f"damaged {bad.why}: {bad.remedy}\n"
    rows = (*map(_row, listing.entries), *map(_pending_row, listing.pending))
    if rows:
        yield from aligned(_COLUMNS, rows, right=_SIZES)
    else:
        yield "no checkpoints yet; make one with: crckpt dump PID JOB\n"


def _row(entry: Entry) -> tuple[str, ...]:
    checkpoint, numbers = entry.checkpoint, entry.checkpoint.statistics
    return (
        short(checkpoint.id),
        checkpoint.job,
        made(checkpoint),
        str(len(checkpoint.tree)),
        duration(numbers.frozen_ms),
        size(numbers.raw_bytes),
        size(numbers.new_bytes),
        size(numbers.stored_bytes),
        " ".join((*entry.tags, checkpoint.note or "")),
    )


def _pending_row(one: Pending) -> tuple[str, ...]:
    state = "lost" if one.lost else "committing"
    said = f"{one.lost}; forget it: crckpt gc" if one.lost else f"PID {one.pid} stores it"
    return (state, one.job, moment(one.created), *[""] * len(_SIZES), said)
