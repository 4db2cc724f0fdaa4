"""`crckpt verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crckpt.cli import options
from crckpt.cli.progress import shown
from crckpt.cli.render import Shown, count, emit, escaped, short, size
from crckpt.errors import IntegrityError

if TYPE_CHECKING:
    from rich.console import Console


def verify(
    ref: Annotated[
        str | None, typer.Argument(help="The checkpoint to verify.", metavar="REF", show_default="all")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Verify every checkpoint.")] = False,
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Check every digest of a checkpoint, or of the whole store, down to the last byte.

    Ends with 13 if anything is damaged, naming what, and which checkpoints it touches.
    """
    from crckpt.ops.verify import verify as perform

    with shown("verifying", as_json=as_json) as progress:
        result = perform(options.context(store, config=config, progress=progress), None if everything else ref)

    def text(console: Console) -> None:
        for damage in result.damages:
            touched = ", ".join(short(identity) for identity in damage.checkpoints)
            console.print(f"[red]damaged[/] {escaped(damage.what)}; touches {touched or 'no checkpoint'}")
        if not result.damages:
            console.print(
                f"{count(len(result.checkpoints), 'checkpoint')} whole, to the last byte ({size(result.bytes)} read)"
            )
        else:
            console.print("what is not named above is whole; remove what is damaged with: crckpt rm REF")

    emit("verify", Shown({**vars(result), "intact": not result.damages}, text), as_json=as_json)
    if result.damages:
        raise typer.Exit(IntegrityError.exit_code)
