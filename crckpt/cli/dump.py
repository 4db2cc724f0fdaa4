"""`crckpt dump`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from crckpt.cli import options
from crckpt.cli.progress import shown
from crckpt.cli.render import dumped, emit
from crckpt.config import COMPRESS_LEVELS
from crckpt.errors import CrckptError


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
    target: Annotated[
        str, typer.Argument(help="PID, pidfile:PATH, unit:NAME or cgroup:PATH of the tree's root.", metavar="TARGET")
    ],
    job: Annotated[
        str | None,
        typer.Argument(help="The series that the checkpoint belongs to.", metavar="JOB", show_default="program's name"),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the tree, once its checkpoint is safe on disk and not before.")
    ] = False,
    tcp: TcpOption = None,
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
    staging: Annotated[
        Path | None,
        typer.Option(
            "--staging", help="Where the images lie until they are stored: a directory.", show_default="in the store"
        ),
    ] = None,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Try it against all advice: CRIU finds out, with the tree frozen.")
    ] = False,
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

    from crckpt.host.background import continued_in_background
    from crckpt.ops.dump import Dumped, Request
    from crckpt.ops.dump import dump as perform

    request = Request(
        target, job, stop, tcp.value if tcp else None, tag, note, dry_run, asynchronous, not no_preflight, incremental
    )

    def say(result: Dumped) -> None:
        emit("dump", dumped(result, verbose=verbose), as_json=as_json)

    context = options.context(store, criu=criu, config=config)
    if compress is not None:
        context = replace(context, compress=compress)
    if staging is not None:
        context = replace(context, staging=staging.absolute())
    if asynchronous and not dry_run:
        let_go = continued_in_background()

        def running(result: Dumped) -> None:
            # Who listened may have gone: that must not end what is done in the background.
            with suppress(OSError, CrckptError):
                say(result)
            let_go()

        perform(request, context, running)
        return
    with shown("storing", as_json=as_json) as progress:
        result = perform(request, replace(context, progress=progress))
    say(result)
