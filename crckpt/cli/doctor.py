"""`crckpt doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from crckpt.cli import options
from crckpt.cli.render import diagnosed, emit, on_one_line
from crckpt.errors import HostCannot

if TYPE_CHECKING:
    from crckpt.ops.doctor import Fix


def doctor(
    store: options.Store = None,
    criu: options.CriuPath = None,
    config: options.ConfigPath = None,
    fix: Annotated[bool, typer.Option("--fix", help="Do what can be done safely, after asking.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Answer the question of --fix.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say what this host can do, what is missing, and the command that mends it.

    Every fact is tried out, none is guessed from a version. Ends with 20 if nothing can be checkpointed here.
    """
    from crckpt.ops.doctor import doctor as perform
    from crckpt.ops.doctor import mend

    context = options.context(store, criu=criu, config=config)
    result = perform(context)
    if fix and _agreed(result.fixes, yes=yes):
        result = mend(context, result)
        _say(f"{'done' if tried.done else 'failed'}: {tried.command}{_because(tried)}" for tried in result.fixes)
    emit("doctor", diagnosed(result), as_json=as_json)
    if not result.able:
        raise typer.Exit(HostCannot.exit_code)


def _agreed(fixes: tuple[Fix, ...], *, yes: bool) -> bool:
    if not fixes:
        _say(("nothing here can be fixed safely",))
        return False
    if yes:
        return True
    _say(f"would run: {fix.command}" for fix in fixes)
    if sys.stdin is None or not sys.stdin.isatty():
        _say(("nothing was changed: nobody can be asked here; --yes answers",))
        return False
    return typer.confirm("run this?", err=True)


def _because(fix: Fix) -> str:
    return f" ({on_one_line(fix.said)})" if fix.said else ""


def _say(lines: Iterable[str]) -> None:
    """Beside the result, which may be read by a program."""
    for line in lines:
        typer.echo(line, err=True)
