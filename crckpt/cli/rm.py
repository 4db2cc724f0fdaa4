"""`crckpt rm`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from crckpt.cli import options
from crckpt.cli.format import short_id
from crckpt.cli.output import Output, emit
from crckpt.ops.rm import RemovalResult
from crckpt.ops.rm import rm as perform


def rm(
    refs: Annotated[
        list[str],
        typer.Argument(
            help="The checkpoints to remove: JOB (only its newest), JOB~2, JOB:TAG, or ids.", metavar="REF..."
        ),
    ],
    store: options.Store = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove checkpoints. Other checkpoints keep all their data; `crckpt gc` then frees the space.

    After `crckpt dump --stop --tcp keep`, a firewall rule drops the packets of the tree's connections until you restore
    the checkpoint. Removing the checkpoint removes that rule too.
    """
    result = perform(options.make_context(store, config=config), tuple(refs))
    emit("rm", Output(result, _lines(result)), as_json=as_json)


def _lines(result: RemovalResult) -> Iterator[str]:
    for identity in result.removed:
        yield f"removed {short_id(identity)}\n"
    for table in result.lifted_locks:
        yield f"removed the network lock of the stopped tree (nftables: table inet {table})\n"
    yield "free the space with: crckpt gc\n"
