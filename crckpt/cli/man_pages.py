"""Write the man pages from the commands, without any tool: `python -m crckpt.cli.man_pages DIRECTORY`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from crckpt import __version__
from crckpt.cli.app import GROUPS
from crckpt.cli.command_reference import FILES, VARIABLES, Command, Parameter, exit_codes, read_commands

_DESCRIPTION: Final = (
    "crckpt stops a running Linux process tree and brings it back: later, on this host or on a similar one. It drives "
    "criu(8), which saves memory, registers, threads, files and sockets of unmodified programs. Checkpoints are in a "
    "store: complete, deduplicated, and protected by SHA-256.",
    "Start with `crckpt doctor`, then `crckpt dump PID JOB` and `crckpt restore JOB`. These need root.",
)
_NAMES: Final = (
    ("TARGET", "A running tree: a PID, `pidfile:PATH`, `unit:NAME` (systemd), `cgroup:PATH`, or a running job."),
    ("JOB", "The name under which the checkpoints of one program are kept."),
    ("REF", "A checkpoint: `JOB` (the newest), `JOB~2` (two before that), `JOB:TAG`, or the first digits of an id."),
)
# Markdown that the help uses: bold, italic, code.
_MARKUP: Final = re.compile(r"\*\*(?P<bold>[^*]+)\*\*|`(?P<code>[^`]+)`|\*(?P<italic>[^*\s][^*]*)\*")


def write_man_pages(directory: Path) -> tuple[Path, ...]:
    """Write crckpt.1 and a page for each command to `directory`. Returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    commands = read_commands()
    pages = {"crckpt": _overview(commands)} | {f"crckpt-{command.name}": _page(command) for command in commands}
    for name, lines in pages.items():
        (directory / f"{name}.1").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tuple(directory / f"{name}.1" for name in pages)


def _overview(commands: tuple[Command, ...]) -> Iterator[str]:
    yield from _head("crckpt", "checkpoint running Linux process trees and bring them back")
    yield from (".SH SYNOPSIS", r"\fBcrckpt\fR \fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]")
    yield from (".SH DESCRIPTION", *_paragraphs(_DESCRIPTION))
    yield ".SH COMMANDS"
    summaries = {command.name: command.summary for command in commands}
    for heading, names in GROUPS.items():
        yield f".SS {_escape(heading)}"
        for name in names:
            yield from _entry(rf"\fBcrckpt\-{_escape(name)}\fR(1)", _text(summaries[name]))
    for heading, rows in (
        ("NAMES", _NAMES),
        ("ENVIRONMENT", VARIABLES),
        ("FILES", FILES),
        ("EXIT STATUS", tuple((str(code), meaning) for code, meaning in exit_codes())),
    ):
        yield f".SH {heading}"
        for name, meaning in rows:
            yield from _entry(rf"\fB{_escape(name)}\fR", _text(meaning))
    yield ".PP"
    yield _text(
        "In the foreground `crckpt restore` ends with the program's status, or 128 plus the signal that ended it."
    )
    yield from (".SH SEE ALSO", ".BR criu (8)")


def _page(command: Command) -> Iterator[str]:
    yield from _head(f"crckpt-{command.name}", command.summary.rstrip("."))
    yield from (".SH SYNOPSIS", rf"\fBcrckpt {_escape(command.name)}\fR {_escape(command.operands)}")
    yield from (".SH DESCRIPTION", *_paragraphs(command.paragraphs))
    if command.arguments:
        yield from (".SH ARGUMENTS", *_entries(command.arguments))
    yield ".SH OPTIONS"
    for heading, options in command.panels.items():
        yield from (f".SS {_escape(heading)}", *_entries(options))
    if command.examples:
        # .nf: roff would fill the lines of commands into a paragraph.
        yield from (".SH EXAMPLES", ".nf", *map(_escape, command.examples), ".fi")
    yield from (".SH EXIT STATUS", _text("0 if the command succeeded. `crckpt`(1) lists all exit codes."))
    yield from (".SH SEE ALSO", ".BR crckpt (1),", ".BR criu (8)")


def _head(name: str, summary: str) -> Iterator[str]:
    # Without a date: the same source makes the same page.
    yield f'.TH {_escape(name).upper()} 1 "" "crckpt {__version__}" "crckpt"'
    # No hyphens in options and commands, and no stretched lines.
    yield from (".nh", ".ad l", ".SH NAME", rf"{_escape(name)} \- {_escape(summary)}")


def _paragraphs(paragraphs: Iterable[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        yield from (".PP", _text(paragraph))


def _entries(parameters: Iterable[Parameter]) -> Iterator[str]:
    for parameter in parameters:
        notes = (
            f"Default: {parameter.default}." if parameter.default else "",
            f"Variable: `{parameter.variable}`." if parameter.variable else "",
        )
        yield from _entry(rf"\fB{_escape(parameter.title)}\fR", _text(" ".join(filter(None, (parameter.help, *notes)))))


def _entry(title: str, text: str) -> Iterator[str]:
    return iter((".TP", title, text))


def _text(markdown: str) -> str:
    """Convert a paragraph of Markdown to a line of roff."""
    text, end = "", 0
    for found in _MARKUP.finditer(markdown):
        font = "I" if found["italic"] else "B"
        text += rf"{_escape(markdown[end : found.start()])}\f{font}{_escape(found[found.lastindex or 0])}\fR"
        end = found.end()
    return _guard(text + _escape(markdown[end:]))


def _escape(text: str) -> str:
    """Escape what roff would read as its own: backslashes, and hyphens, which must stay what they are."""
    return _guard(text.replace("\\", r"\e").replace("-", r"\-").replace("~", r"\(ti").replace("'", r"\(aq"))


def _guard(line: str) -> str:
    """A line that begins with a dot would be a request."""
    return rf"\&{line}" if line.startswith(".") else line


if __name__ == "__main__":
    write_man_pages(Path(sys.argv[1]))
