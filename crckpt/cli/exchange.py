"""`crckpt export` and `crckpt import`: plain CRIU images, out of the store and into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crckpt.cli import options
from crckpt.cli.progress import shown
from crckpt.cli.render import Shown, count, emit, escaped, short, size, summary
from crckpt.errors import UsageError
from crckpt.host.process.run import spelled

if TYPE_CHECKING:
    from rich.console import Console


def export(
    ref: options.Ref,
    directory: Annotated[Path, typer.Argument(help="Where to write; must be empty or not exist.", metavar="DIR")],
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a checkpoint as plain CRIU images, which `criu restore -D DIR` accepts. For a stream, run tar on DIR."""
    if str(directory) == "-":
        raise UsageError(
            "crckpt export writes a directory, and no stream (-)",
            hint=f"crckpt export {spelled([ref])} DIR && tar -C DIR -c .",
        )
    from crckpt.ops.export import export as perform

    with shown("unpacking", as_json=as_json) as progress:
        result = perform(options.context(store, config=config, progress=progress), ref, directory)

    def text(console: Console) -> None:
        console.print(f"{short(result.id)} is in {escaped(str(result.directory))}; restore it without crckpt by:")
        console.print(escaped(result.command))

    emit("export", Shown(result, text), as_json=as_json)


def import_images(
    directory: Annotated[Path, typer.Argument(help="A directory of CRIU images.", metavar="DIR")],
    job: Annotated[str, typer.Argument(help="The series that the checkpoint will belong to.", metavar="JOB")],
    note: Annotated[str | None, typer.Option("--note", help="A line to remember it by.")] = None,
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Take images that `criu dump` made into the store, as the newest checkpoint of JOB. DIR is left as it is."""
    from crckpt.ops.import_images import import_images as perform

    with shown("storing", as_json=as_json) as progress:
        context = options.context(store, config=config, progress=progress)
        checkpoint = perform(context, directory, job, note)

    def text(console: Console) -> None:
        console.print(
            f"[bold]{short(checkpoint.id)}[/]  {checkpoint.job}: {count(len(checkpoint.tree), 'process')}, "
            f"{size(checkpoint.statistics.stored_bytes)} stored"
        )

    emit("import", Shown(summary(checkpoint), text), as_json=as_json)
