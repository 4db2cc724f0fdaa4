"""`crckpt explain`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from crckpt.cli import options
from crckpt.cli.output import emit
from crckpt.criu.explain import Explanation
from crckpt.errors import CauseUnknown
from crckpt.ops.inspect.explain import describe
from crckpt.ops.inspect.explain import explain as perform


def explain(
    log: Path = options.argument("LOG", "A log of criu dump or criu restore, or - for stdin."),
    verbose: bool = options.flag("--verbose -v", "Show CRIU's own lines too."),
) -> None:
    """Explain from CRIU's log why it failed, and what to do about it. Exits with 4 if crckpt does not know the failure.

    For example:

        crckpt explain /tmp/images/dump.log
        criu restore -D images -v4 2>&1 | crckpt explain -
    """
    explanation = perform(log)
    finding = explanation.finding
    failure = None
    if finding is None and explanation.lines:
        failure = CauseUnknown(
            "crckpt does not know this failure", hint=f"report it: crckpt report {shlex.quote(str(log))}"
        )
    document = {"known": finding is not None, **describe(explanation)}
    emit(document, _lines(explanation, verbose=verbose), is_answer=True, failure=failure)


def _lines(explanation: Explanation, *, verbose: bool) -> Iterator[str]:
    finding, line, lines = explanation.finding, explanation.line, explanation.lines
    if finding:
        yield f"{finding.what}\n"
        if explanation.place:
            yield f"  where: {explanation.place}\n"
        yield f"  hint: {finding.remedy}\n"
        yield f"  see: reference/causes.html#{finding.key} in the documents\n"
    elif lines:
        yield "crckpt does not know this failure; make an archive to report it: crckpt report LOG. CRIU's messages:\n"
    else:
        yield "the log shows no error\n"
    # Where the finding does not say all, the reader needs CRIU's own words.
    if verbose or not (finding and finding.says_all):
        yield from (f"  | {own}\n" for own in dict.fromkeys((line, *lines) if line else lines))
