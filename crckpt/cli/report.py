"""`crckpt report`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crckpt.cli import options
from crckpt.cli.render import Shown, emit, size

if TYPE_CHECKING:
    from crckpt.ops.report import Report


def report(
    subject: Annotated[
        str | None,
        typer.Argument(
            help="A checkpoint; or a CRIU log: a name with a slash in it or .log at its end, or - for stdin.",
            metavar="REF|LOG",
            show_default="this host and the store",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write.", show_default="named by the time"),
    ] = None,
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="Let command lines, notes and host names in.")
    ] = False,
    store: options.Store = None,
    criu: options.CriuPath = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Make one archive for a bug report: versions, facts about this host, and what a checkpoint or a log says.

    Memory and environments are never in it; command lines, notes and host names only if asked for. What cannot be had
    is named in it, and stops nothing. Nothing is sent anywhere.
    """
    from crckpt.ops.report import Request
    from crckpt.ops.report import report as perform

    read_log = _log(subject)
    target = output or Path(f"crckpt-report-{datetime.now().astimezone():%Y%m%d-%H%M%S}.tar.gz")
    request = Request(target.absolute(), None if read_log else subject, read_log, with_secrets)
    result = perform(options.context(store, criu=criu, config=config), request)
    emit("report", Shown(result, _lines(result)), as_json=as_json)


def _log(subject: str | None) -> Callable[[], bytes] | None:
    """What reads the log; None where `subject` is none. What lies in the directory plays no part in which it is."""
    if subject is not None and (subject == "-" or "/" in subject or subject.endswith(".log")):
        return partial(_read_log, Path(subject))
    return None


def _read_log(log: Path) -> bytes:
    from crckpt.ops.inspect.explain import read_log

    return read_log(log)


def _lines(result: Report) -> Iterator[str]:
    for failed in result.failed:
        yield f"not in it: {failed.part}: {failed.why}\n"
    yield f"{result.archive} ({size(result.bytes)})\n"
    inside = ", ".join(member.name for member in result.members)
    secrets = f"{'and' if result.with_secrets else 'without'} command lines, notes and host names"
    yield (
        f"It holds {inside}, with paths (CRIU's logs are of no use without them), network addresses and names of "
        f"processes, {secrets}: look through it before you send it.\n"
    )
