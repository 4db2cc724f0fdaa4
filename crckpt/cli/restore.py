"""`crckpt restore`."""

from __future__ import annotations

import enum
import sys
from contextlib import suppress
from typing import Annotated

import typer

from crckpt.cli import options
from crckpt.cli.dump import TcpOption
from crckpt.cli.progress import shown
from crckpt.cli.render import emit, restored
from crckpt.errors import CrckptError


class Grown(enum.StrEnum):
    """What to do with files that only grew since the checkpoint."""

    refuse = "refuse"
    keep = "keep"
    rewind = "rewind"


def restore(
    ref: options.Ref,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when the tree runs; do not stay its parent.")
    ] = False,
    tcp: TcpOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look whether it would work; touch nothing.")] = False,
    or_older: Annotated[
        bool,
        typer.Option(
            "--or-older", help="If it is damaged or does not fit, take the next older one of its job that does."
        ),
    ] = False,
    new_pid_namespace: Annotated[
        bool, typer.Option("--new-pid-namespace", help="Restore into PIDs of its own, whoever has them on this host.")
    ] = False,
    grown: Annotated[
        Grown,
        typer.Option(
            "--grown",
            help="Files that grew since: **refuse**, **rewind** (cut back; what came after is kept beside them) or "
            "**keep** (logs opened for appending only). None is cut under a process that writes it.",
        ),
    ] = Grown.refuse,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Try it against all advice: CRIU finds out, or the program does.")
    ] = False,
    allow_weaker: Annotated[
        bool,
        typer.Option(
            "--allow-weaker",
            help="Restore a program even if it gets less confined than before (Landlock, a cgroup namespace, rules of "
            "its control group). crckpt says what gets weaker.",
        ),
    ] = False,
    store: options.Store = None,
    criu: options.CriuPath = None,
    config: options.ConfigPath = None,
    verbose: options.Verbose = False,
    as_json: options.AsJson = False,
) -> None:
    """Bring a checkpointed tree back to life.

    Without **--detach** crckpt stays as its parent, passes signals on (but those that it was started to ignore: `nohup`
    works as ever), and ends with the program's own exit status.
    What stands against it is said beforehand, by name; when it fails, nothing is left behind and it can be tried again.

    `crckpt restore trainer --detach` · `crckpt restore trainer~1` · `crckpt restore trainer:before-upgrade`
    """
    from crckpt.ops.restore.restore import Request, wait
    from crckpt.ops.restore.restore import restore as perform

    request = Request(
        ref=ref,
        detach=detach,
        tcp=tcp.value if tcp else None,
        dry_run=dry_run,
        or_older=or_older,
        new_pid_namespace=new_pid_namespace,
        grown=grown.value,
        preflight=not no_preflight,
        allow_weaker=allow_weaker,
        terminal=0 if sys.stdin is not None and sys.stdin.isatty() else None,
        # The document is to be alone on stdout.
        output=2 if as_json else 1,
    )
    with shown("restoring", as_json=as_json, program_follows=True) as progress:
        result = perform(request, options.context(store, criu=criu, config=config, progress=progress))
    if detach or dry_run:
        emit("restore", restored(result, verbose=verbose), as_json=as_json)
        return
    if not as_json:
        # stdout belongs to the program now, which needs us even if nothing can be said.
        with suppress(CrckptError):
            emit("restore", restored(result, verbose=verbose), as_json=False, to_stderr=True)
    status = wait(result)
    if as_json:
        emit("restore", restored(result, verbose=verbose, program_status=status), as_json=True)
    raise typer.Exit(status)
