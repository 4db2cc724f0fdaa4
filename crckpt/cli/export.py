"""`crckpt export`."""

from __future__ import annotations

from pathlib import Path

from crckpt.cli import options
from crckpt.cli.format import short_id
from crckpt.cli.output import emit
from crckpt.cli.progress import progress_bars
from crckpt.errors import UsageError
from crckpt.host.process.run import quote
from crckpt.ops.export import export as perform


def export(
    ref: str = options.REF,
    directory: Path = options.argument("DIR", "Where to write; must be empty or not exist."),
) -> None:
    """Write a checkpoint as plain CRIU images, which `criu restore -D DIR` restores. For a stream, run tar on DIR."""
    if str(directory) == "-":
        raise UsageError(
            "crckpt export writes a directory and cannot write to stdout (-)",
            hint=f"crckpt export {quote([ref])} DIR && tar -C DIR -c .",
        )
    with progress_bars("unpacking") as (progress,):
        result = perform(options.make_context(progress=progress), ref, directory)
    text = (f"{short_id(result.id)} is in {result.directory}; restore it without crckpt:\n", f"{result.command}\n")
    emit(result, iter(text))
