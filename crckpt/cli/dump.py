"""`crckpt dump`."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec.structs import replace

from crckpt.cli import options
from crckpt.cli.progress import shown
from crckpt.cli.render import dumped, emit
from crckpt.config import COMPRESS_LEVELS
from crckpt.errors import CrckptError, UsageError

if TYPE_CHECKING:
    from crckpt.ops.dump.commit import Dumped
    from crckpt.ops.dump.request import PreCopy

_ROUNDS: Final = 8


class Tcp(enum.StrEnum):
    """What happens to established TCP connections."""

    keep = "keep"
    close = "close"


TcpOption = Annotated[
    Tcp | None,
    typer.Option(
        "--tcp",
        help="Established TCP connections: **keep** them (frozen now, going on after the restore) or **close** them.",
        show_default="ask",
    ),
]


def dump(
    target: options.Target,
    job: options.Job = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the tree, once its checkpoint is safe on disk and not before.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --stop: end the tree even if no test covers the restore of a resource that it uses, or if a "
            "restore is refused without --allow-weaker.",
        ),
    ] = False,
    tcp: TcpOption = None,
    skip_in_flight: Annotated[
        bool,
        typer.Option(
            "--skip-in-flight",
            help="Leave out TCP connections that the program has not accepted yet. They are gone after a restore; "
            "with --stop their peers see a reset.",
        ),
    ] = False,
    tag: Annotated[str | None, typer.Option("--tag", help="Give the checkpoint a name: JOB:TAG.")] = None,
    note: Annotated[str | None, typer.Option("--note", help="A line to remember it by.")] = None,
    compress: Annotated[
        int | None,
        typer.Option(
            "--compress",
            min=COMPRESS_LEVELS[0],
            max=COMPRESS_LEVELS[-1],
            help="zstd level.",
            show_default="-1 or 1, what suits",
        ),
    ] = None,
    asynchronous: Annotated[
        bool,
        typer.Option(
            "--async", help="Return when the tree runs on; `crckpt list` says when the checkpoint is durable."
        ),
    ] = False,
    incremental: Annotated[
        bool | None,
        typer.Option(
            "--incremental/--no-incremental",
            help="Dump only what was written since the last checkpoint; the first one is full, and starts a tracker.",
            show_default="if the tree is tracked: crckpt trackers",
        ),
    ] = None,
    pre_copy: Annotated[
        bool,
        typer.Option(
            "--pre-copy", help="Copy in rounds while the tree runs, then freeze it for what was written meanwhile."
        ),
    ] = False,
    max_freeze: Annotated[
        str | None,
        typer.Option(
            "--max-freeze",
            help="Take rounds until so short a freeze is foreseen: 100ms, 0.5s.",
            show_default="until little is left",
            metavar="TIME",
        ),
    ] = None,
    max_rounds: Annotated[
        int | None, typer.Option("--max-rounds", min=1, help="Take so many rounds at the most.", show_default="8")
    ] = None,
    abort_over: Annotated[
        bool, typer.Option("--abort-over", help="Make no checkpoint if a freeze longer than --max-freeze is foreseen.")
    ] = False,
    staging: options.Staging = None,
    no_preflight: options.NoPreflight = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look and say what would be done; touch nothing.")] = False,
    store: options.Store = None,
    criu: options.CriuPath = None,
    config: options.ConfigPath = None,
    verbose: options.Verbose = False,
    as_json: options.AsJson = False,
) -> None:
    """Checkpoint a running process and all its descendants.

    The tree stands still while CRIU copies its memory, then goes on (or ends: **--stop**). Nothing is lost when this
    fails or is interrupted: the tree runs on.

    `crckpt dump 812 trainer` · `crckpt dump unit:redis --stop --tcp close` · `crckpt dump pidfile:/run/app.pid`
    """
    from contextlib import suppress

    from crckpt.host.process.background import continued_in_background

    # Before much is loaded: of what the child changes, if it is only a count of references, the kernel copies the page.
    let_go = continued_in_background() if asynchronous and not dry_run else None

    from crckpt.ops.dump.dump import dump as perform
    from crckpt.ops.dump.request import Request

    request = Request(
        target,
        job,
        stop,
        tcp.value if tcp else None,
        tag,
        note,
        dry_run,
        asynchronous,
        not no_preflight,
        incremental,
        _rounds(pre_copy, max_rounds, max_freeze, abort_over),
        skip_in_flight,
        force,
    )

    def say(result: Dumped) -> None:
        emit("dump", dumped(result, verbose=verbose), as_json=as_json)

    context = options.context(store, criu=criu, config=config, staging=staging)
    if compress is not None:
        context = replace(context, compress=compress)
    if let_go is not None:

        def running(result: Dumped) -> None:
            # That it cannot be said must not end what is done in the background.
            with suppress(CrckptError):
                say(result)
            let_go()

        perform(request, context, running)
        return
    with shown("storing", as_json=as_json, before="copying" if pre_copy else "dumping") as progress:
        result = perform(request, replace(context, progress=progress))
    say(result)


def _rounds(wanted: bool, most: int | None, max_freeze: str | None, abort_over: bool) -> PreCopy | None:
    from crckpt.ops.dump.request import PreCopy

    if not wanted and (most is not None or max_freeze is not None or abort_over):
        words = "--max-rounds, --max-freeze and --abort-over are about the rounds of --pre-copy"
        raise UsageError(words, hint="add --pre-copy, or leave them out")
    if abort_over and max_freeze is None:
        raise UsageError("--abort-over needs to know what is too long", hint="add --max-freeze, as --max-freeze 100ms")
    if not wanted:
        return None
    longest = None if max_freeze is None else options.milliseconds(max_freeze, "--max-freeze")
    return PreCopy(most or _ROUNDS, longest, abort_over)
