"""`crckpt explain`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crckpt.cli import options
from crckpt.cli.render import Shown, emit

if TYPE_CHECKING:
    from crckpt.criu.explain import Explanation


def explain(
    log: Annotated[
        Path, typer.Argument(help="A log that criu dump or criu restore wrote, or - for stdin.", metavar="LOG")
    ],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show CRIU's own lines too.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say why CRIU failed, by its log, and what to do about it.

    crckpt explain /tmp/images/dump.log · criu restore -D images -v4 2>&1 | crckpt explain -
    """
    from crckpt.ops.inspect.explain import explain as perform

    told = perform(log)
    finding = told.finding
    document = {
        "known": finding is not None,
        "cause": finding.key if finding else None,
        "what": finding.what if finding else None,
        "remedy": finding.remedy if finding else None,
        "sure": finding.sure if finding else None,
        "place": told.place,
        "line": told.line or None,
        "lines": told.lines,
    }
    emit("explain", Shown(document, _said(told, verbose=verbose)), as_json=as_json)


def _said(told: Explanation, *, verbose: bool) -> Iterator[str]:
    if told.finding:
        yield f"{told.finding.what}\n"
        if told.place:
            yield f"  where: {told.place}\n"
        yield f"  hint: {told.finding.remedy}\n"
    elif told.lines:
        yield "crckpt does not know this failure (crckpt report LOG makes an archive to report it with); CRIU said:\n"
    else:
        yield "the log shows no error\n"
    if verbose or not (told.finding and told.finding.sure):
        for line in dict.fromkeys((told.line, *told.lines) if told.line else told.lines):
            yield f"  | {line}\n"
