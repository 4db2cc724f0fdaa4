"""Print a result or an error: text for people, or one JSON document."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import asdict

from crckpt.causes import Finding, Refusal
from crckpt.cli.format import finding_lines, on_one_line
from crckpt.errors import CommandFailure, CrckptError, PreflightRefused, RemoteError

if TYPE_CHECKING:
    from rich.console import Console

    from crckpt.criu.find import Criu
    from crckpt.store import Checkpoint

SCHEMA: Final = 1
"""The version of the JSON documents."""

Text: TypeAlias = "str | Iterable[str] | Callable[[Console], None]"
"""One line, or several; or a function that draws on a console."""

# Columns of a file or a pipe: nothing is folded there.
_WIDTH_WITHOUT_TERMINAL: Final = 200


class Form:
    """How this process prints: `app.run` sets it for each command line, and the parser the option --quiet.

    `is_quiet`: print nothing but errors, JSON documents and answers.
    """

    command = ""
    as_json = False
    is_quiet = False


form: Final = Form()


def print_progress(line: str) -> None:
    """Print a line on stderr about what is done, unless --quiet was given: it is not the result."""
    if not form.is_quiet:
        print_error(line)


def print_error(*lines: str) -> None:
    """Print lines on stderr: a program may read the result on stdout."""
    # A terminal that has gone does not stop the work.
    with suppress(OSError):
        # They may quote another host, or a name of others.
        sys.stderr.writelines(f"{on_one_line(line)}\n" for line in lines)
        sys.stderr.flush()


def emit(
    document: object,
    text: Text,
    *,
    is_answer: bool = False,
    failure: CommandFailure | None = None,
    to_stderr: bool = False,
) -> None:
    """Print a result in one of its forms: `document` as JSON, or `text`.

    Lines may contain text of others as it is; what is drawn must be escaped. `is_answer`: the text is what the user
    asked for, not a message about what was done; it is printed with --quiet, too. `failure`: the result is bad news,
    and the command ends with its exit code (typer.Exit).

    A reader that has gone (head, less) is not a failure: the rest is discarded. Raises CrckptError if the result cannot
    be written for another reason.
    """
    try:
        if form.as_json:
            _print_document(document, failure)
        elif is_answer or not form.is_quiet:
            _print_text(text, to_stderr=to_stderr)
    except (BrokenPipeError, SystemExit):  # rich turns a broken pipe into SystemExit
        discard(sys.stderr if to_stderr else sys.stdout)
    except OSError as error:
        raise CrckptError(
            f"crckpt {form.command} succeeded, but its output could not be written: {error.strerror}",
            hint="do not run it again for the output; list the checkpoints: crckpt list",
        ) from error
    if failure is not None:
        raise typer.Exit(failure.exit_code)


def can_ask() -> bool:
    """Return whether there is a terminal to ask on."""
    # Python has no sys.stdin if descriptor 0 was closed.
    return sys.stdin is not None and sys.stdin.isatty()


def ask(question: str) -> bool:
    """Ask a person for a yes or no on stderr; without an answer (^D) it is no."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        typer.echo("", err=True)
        return False


def discard(stream: TextIO) -> None:
    """Send what is still written to a stream to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # The stream itself stays open: later writes, and its flush, must not fail.
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def error_document(error: CommandFailure) -> dict[str, object]:
    """A failure as JSON."""
    content = {"code": error.exit_code, **pick(error, "message", "hint", "causes")}
    if isinstance(error, RemoteError):
        content["from_peer"] = error.from_peer
    return {"schema": SCHEMA, "command": form.command, "status": "error", "error": content}


def error_text(error: CommandFailure) -> str:
    """A failure as text: what happened, the causes that the message does not say, and what to type next."""
    if isinstance(error, PreflightRefused) and len(error.causes) > 1:
        # Each cause has its own remedy; the message and the hint are those of the first.
        found = error.findings if isinstance(error, Refusal) else ()
        reasons = finding_lines(found) if found else (f"  - {cause}" for cause in error.causes)
        lines = [f"crckpt: refused for {len(error.causes)} reasons:", *reasons]
        return "".join(f"{on_one_line(line)}\n" for line in lines)
    lines = [f"crckpt: {error.message}", *(f"  - {cause}" for cause in error.causes[error.causes_said :])]
    if error.hint:
        lines.append(f"  hint: {error.hint}")
    return "".join(f"{on_one_line(line)}\n" for line in lines)


def pick(value: object, *names: str) -> dict[str, object]:
    """Return these attributes of a value, which are keys of a JSON document."""
    return {name: getattr(value, name) for name in names}


def utc_seconds(moment: datetime) -> str:
    """A time as programs read it (`fromdate` of jq): in whole seconds, UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def checkpoint_document(checkpoint: Checkpoint) -> dict[str, object]:
    """The keys that each JSON document has for a checkpoint."""
    return {
        **pick(checkpoint, "id", "job", "created", "parent", "stopped", "note", "statistics"),
        "created_utc": utc_seconds(checkpoint.created),
        "in_future": checkpoint.is_in_future(datetime.now(UTC)),
        "processes": len(checkpoint.tree),
    }


def criu_document(criu: Criu) -> dict[str, object]:
    """The keys that a document has for the CRIU that was used."""
    return {"criu": criu.path, "criu_passed_over": criu.passed_over}


def _print_document(result: object, failure: CommandFailure | None) -> None:
    failed = error_document(failure) if failure is not None else {}
    document = {"schema": SCHEMA, "command": form.command, "status": "ok", **failed, "result": result}
    text = json.dumps(document, default=_plain)
    try:
        # As json.dumps(indent=2), which takes three times as long for thousands of checkpoints.
        text = msgspec.json.format(text)
    except msgspec.DecodeError:  # a lone surrogate: a name or a note in no encoding
        text = json.dumps(json.loads(text), indent=2)
    # On stdout also with `to_stderr`: a program reads it there.
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _print_text(text: Text, *, to_stderr: bool) -> None:
    if not callable(text):
        stream = sys.stderr if to_stderr else sys.stdout
        lines = (text,) if isinstance(text, str) else text
        stream.writelines(on_one_line(line.removesuffix("\n")) + "\n" for line in lines)
        # Here, where a failure is still one of this command.
        stream.flush()
        return
    from rich.console import Console  # only where something is drawn: it takes long to load

    # highlight: rich would colour numbers and paths in what is not ours. soft_wrap: a terminal folds lines so that a
    # path can still be copied in one piece.
    console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
    if console.is_terminal:
        text(console)
        return
    console.width = _WIDTH_WITHOUT_TERMINAL
    with console.capture() as drawn:
        text(console)
    # rich fills each cell of a table with blanks: of no use in a file.
    console.file.writelines(f"{line.rstrip()}\n" for line in drawn.get().removesuffix("\n").split("\n"))
    console.file.flush()


def _plain(value: object) -> object:
    """A value that the json module does not know, as one that it knows."""
    if isinstance(value, Finding):
        return pick(value, "key", "what", "remedy", "sure")
    if isinstance(value, Struct):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Iterator):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no JSON for {value!r}")
