"""`crckpt doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from crckpt.cli import options
from crckpt.cli.render import diagnosed, emit, examined, nobody_reads, on_one_line
from crckpt.errors import HostCannot, PreflightRefused, UsageError

if TYPE_CHECKING:
    from crckpt.ops.context import Context
    from crckpt.ops.doctor import Fix


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A tree to look at: PID, pidfile:PATH, unit:NAME or cgroup:PATH.",
            metavar="TARGET",
            show_default="host",
        ),
    ] = None,
    store: options.Store = None,
    criu: options.CriuPath = None,
    config: options.ConfigPath = None,
    fix: Annotated[bool, typer.Option("--fix", help="Do what can be done safely, after asking.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Answer the question of --fix.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say what this host can do, what is missing, and the command that mends it.

    Every fact is tried out, none is guessed from a version. Ends with 20 if nothing can be checkpointed here.

    Of a **TARGET** it says, without stopping it, what stands against its checkpoint and what would be lost, with the
    way out, and which options `crckpt dump` would pick. Ends with 24 if anything stands against it. Then it predicts
    how long the tree would stand still, how long the dump would take, and its size: for that it dumps a small tree of
    its own, and stores a sample of the target's memory, of both of which nothing is kept.
    """
    if target is not None:
        _examine(target, options.context(store, criu=criu, config=config), fix=fix, as_json=as_json)
        return
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


def _examine(target: str, context: Context, *, fix: bool, as_json: bool) -> None:
    from crckpt.ops.dump.examine import examine
    from crckpt.ops.dump.predict import predict
    from crckpt.ops.dump.request import Request

    if fix:
        raise UsageError("--fix mends this host, and no tree", hint=f"crckpt doctor {target}")
    result = examine(Request(target), context)
    emit("doctor", examined(result, predict(result, context)), as_json=as_json)
    if result.blockers:
        raise typer.Exit(PreflightRefused.exit_code)


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
    try:
        return typer.confirm("run this?", err=True)
    except typer.Abort:  # ^D: that is no answer
        _say(("", "nothing was changed"))
        return False


def _because(fix: Fix) -> str:
    return f" ({on_one_line(fix.said)})" if fix.said else ""


def _say(lines: Iterable[str]) -> None:
    """Beside the result, which may be read by a program."""
    try:
        for line in lines:
            typer.echo(line, err=True)
    except BrokenPipeError:
        nobody_reads(sys.stderr)
