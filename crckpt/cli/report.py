"""`crckpt report`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from crckpt.cli import options
from crckpt.cli.format import size
from crckpt.cli.output import emit
from crckpt.errors import NoSuchCheckpoint

if TYPE_CHECKING:
    from crckpt.ops.report import Report


def report(
    subject: str | None = options.argument(
        "REF|LOG",
        "A checkpoint, or a CRIU log: a path that has a slash or ends in .log, or - for stdin.",
        default=None,
        shown="this host and the store",
    ),
    output: Path | None = options.option("--output -o FILE", "The file to write.", shown="crckpt-report-TIME.tar.gz"),
    with_secrets: bool = options.flag("--with-secrets", "Include command lines, notes and host names."),
) -> None:
    """Make an archive for a bug report: versions, facts about this host, and the data of a checkpoint or a log.

    It never contains memory or environments. It contains command lines, notes and host names only with
    **--with-secrets**. If a part cannot be read, crckpt skips it and says so. Nothing is sent anywhere.
    """
    # Slow to load, and needed neither for the help nor to complete a command line.
    from crckpt.ops.report import ReportRequest
    from crckpt.ops.report import report as perform

    read = None
    # By its name alone: the meaning must not depend on what lies in the current directory.
    if subject is not None and (subject == "-" or "/" in subject or subject.endswith(".log")):
        from crckpt.ops.inspect.explain import read_log

        read = partial(read_log, Path(subject))
    target = output or Path(f"crckpt-report-{datetime.now().astimezone():%Y%m%d-%H%M%S}.tar.gz")
    request = ReportRequest(target.absolute(), None if read else subject, read, with_secrets)
    try:
        result = perform(options.make_context(), request)
    except NoSuchCheckpoint as error:
        hint = f"{error.hint} (for a log: crckpt report {shlex.quote(f'./{subject}')})"
        raise NoSuchCheckpoint(error.message, hint=hint) from error
    emit(result, _lines(result), is_answer=output is None)


def _lines(result: Report) -> Iterator[str]:
    yield from (f"skipped: {failed.part}: {failed.why}\n" for failed in result.failed)
    yield f"{result.archive} ({size(result.bytes)})\n"
    files = ", ".join(member.name for member in result.members)
    secrets = (
        "and command lines, notes and host names"
        if result.with_secrets
        else "but no command lines, notes or host names"
    )
    yield (
        f"It contains {files}, with paths (CRIU's logs are useless without them), network addresses and names of "
        f"processes, {secrets}. Read it before you send it.\n"
    )
