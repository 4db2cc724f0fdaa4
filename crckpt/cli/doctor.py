"""`crckpt doctor`."""

from __future__ import annotations

import typer

from crckpt.cli import options
from crckpt.cli.render import diagnosed, emit
from crckpt.errors import HostCannot


def doctor(
    store: options.Store = None,
    criu: options.CriuPath = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Say what this host can do, what is missing, and the command that mends it.

    Every fact is tried out, none is guessed from a version. Ends with 20 if nothing can be checkpointed here.
    """
    from crckpt.ops.doctor import doctor as perform

    result = perform(options.context(store, criu=criu, config=config))
    emit("doctor", diagnosed(result), as_json=as_json)
    if not result.able:
        raise typer.Exit(HostCannot.exit_code)
