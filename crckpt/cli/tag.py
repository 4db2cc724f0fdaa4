"""`crckpt tag`."""

from __future__ import annotations

from typing import Annotated

import typer

from crckpt.cli import options
from crckpt.cli.format import short_id
from crckpt.cli.output import Output, emit
from crckpt.ops.tag import tag as perform


def tag(
    ref: options.Ref,
    name: Annotated[
        str, typer.Argument(help="The tag: letters, digits, dots, underscores and hyphens.", metavar="TAG")
    ],
    remove: Annotated[bool, typer.Option("--remove", help="Remove the tag from REF instead.")] = False,
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Give a checkpoint a tag: JOB:TAG then names it. If another checkpoint of the job has the tag, the tag moves."""
    result = perform(options.make_context(store, config=config), ref, name, remove=remove)
    name = f"{result.job}:{result.tag}"
    text = f"removed {name}\n" if remove else f"{name} now names {short_id(result.id)}\n"
    emit("tag", Output(result, iter([text])), as_json=as_json)
