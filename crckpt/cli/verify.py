"""`crckpt verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.progress import shown
from crckpt.cli.render import Shown, count, emit, escaped, short, size
from crckpt.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from crckpt.ops.context import Context
    from crckpt.store import Damage, Repaired, Verified


def verify(
    ref: Annotated[
        str | None, typer.Argument(help="The checkpoint to verify.", metavar="REF", show_default="all")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Verify every checkpoint.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Say what can still be restored; with --from, mend what is damaged.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="With --repair: another store, that may have whole what is damaged here."),
    ] = None,
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Check every digest of a checkpoint, or of the whole store, down to the last byte.

    Ends with 13 if anything is damaged, naming what, and which checkpoints it touches. A repair replaces a damaged
    file only by a whole one, never makes anything worse, and ends with 13 if something stays damaged.
    """
    if everything and ref is not None:
        raise UsageError(f"--all, or {ref} alone?", hint=f"crckpt verify --all, or crckpt verify {ref}")
    if source is not None and not repair:
        raise UsageError("--from is for --repair", hint=f"crckpt verify --repair --from {source}")
    with shown("verifying", as_json=as_json) as progress:
        context = options.context(store, config=config, progress=progress)
        now, repaired = _perform(context, None if everything else ref, source, repair=repair)
    emit("verify", _told(now, repaired), as_json=as_json)
    if now.damages:
        raise typer.Exit(IntegrityError.exit_code)


def _perform(
    context: Context, ref: str | None, source: Path | None, *, repair: bool
) -> tuple[Verified, Repaired | None]:
    from crckpt.ops.repair import repair as mend
    from crckpt.ops.verify import verify as look

    if not repair:
        return look(context, ref), None
    repaired = mend(context, ref, source)
    return repaired.now, repaired


def _told(now: Verified, repaired: Repaired | None) -> Shown:
    document: dict[str, object] = {**asdict(now), "intact": not now.damages}
    if repaired is not None:
        document |= {"mended": repaired.mended, "unmended": repaired.unmended}
        document |= {"restorable": repaired.restorable, "lost": now.lost}

    def text(console: Console) -> None:
        for damage in repaired.mended if repaired else ():
            console.print(f"[green]mended[/] {_touching(damage)}")
        for damage in now.damages:
            console.print(f"[red]damaged[/] {_touching(damage)}")
        for still in repaired.unmended if repaired else ():
            console.print(f"not mended: {escaped(still.why)}")
        if not now.damages:
            console.print(
                f"{count(len(now.checkpoints), 'checkpoint')} whole, to the last byte ({size(now.bytes)} read)"
            )
        elif repaired is None:
            console.print("what is not named above is whole; another store may mend the rest: crckpt verify --repair")
        else:
            _say_what_is_left(console, repaired)

    return Shown(document, text)


def _touching(damage: Damage) -> str:
    touched = ", ".join(short(identity) for identity in damage.checkpoints)
    return f"{escaped(damage.what)}; touches {touched or 'no checkpoint'}"


def _say_what_is_left(console: Console, repaired: Repaired) -> None:
    whole = ", ".join(short(identity) for identity in repaired.restorable)
    console.print(f"can be restored: {whole or 'no checkpoint'}")
    lost = " ".join(short(identity) for identity in repaired.now.lost)
    if lost:
        console.print(f"lost, unless another store has what is damaged (--from STORE): {lost}")
        console.print(f"give them up with: crckpt rm {lost}")
