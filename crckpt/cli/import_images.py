"""`crckpt import`."""

from __future__ import annotations

from pathlib import Path

from crckpt.cli import options
from crckpt.cli.format import count, short_id, size
from crckpt.cli.output import checkpoint_document, emit
from crckpt.cli.progress import progress_bars


def import_images(
    directory: Path = options.argument("DIR", "A directory of CRIU images."),
    job: str = options.argument("JOB", "The job that gets the checkpoint."),
    note: str | None = options.option("--note TEXT", "A line of text to remember it by."),
) -> None:
    """Store images that `criu dump` wrote, as the newest checkpoint of JOB. DIR is not changed."""
    # Slow to load, and needed neither for the help nor to complete a command line.
    from crckpt.ops.import_images import import_images as perform

    with progress_bars("storing") as (progress,):
        context = options.make_context(progress=progress)
        checkpoint = perform(context, directory, job, note)
    text = (
        f"{short_id(checkpoint.id)}  {checkpoint.job}: {count(len(checkpoint.tree), 'process')}, "
        f"{size(checkpoint.statistics.stored_bytes)} stored\n"
    )
    emit(checkpoint_document(checkpoint), text)
