"""The page of a command, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from crckpt.cli.app import GROUPS
from crckpt.cli.command_reference import Command, Parameter
from documents.json_documents import DOCUMENTS
from documents.tables import table


def command_page(command: Command) -> str:
    """Make the page of a command."""
    return "\n\n".join(_parts(command)) + "\n"


def command_groups(commands: Iterable[Command]) -> str:
    """Make a table of commands for each group of the help."""
    summaries = {command.name: command.summary for command in commands}
    return "\n".join(
        f"## {heading}\n\n" + table(("", ""), ((f"[{name}](commands/{name}.md)", summaries[name]) for name in names))
        for heading, names in GROUPS.items()
    )


def _parts(command: Command) -> Iterator[str]:
    yield f"# crckpt {command.name}"
    yield f"```text\ncrckpt {command.name} {command.operands}\n```"
    yield from command.paragraphs
    if command.examples:
        yield "## Examples"
        lines = "\n".join(command.examples)
        yield f"```text\n{lines}\n```"
    if command.arguments:
        yield "## Arguments"
        yield from _entries(command.arguments)
    for heading, options in command.panels.items():
        yield f"## {heading}"
        yield from _entries(options)
    if command.name in DOCUMENTS:
        anchor = f"crckpt-{command.name}"
        yield f"See also [the exit codes](../exit-codes.md) and [its JSON document](../json.md#{anchor})."


def _entries(parameters: Iterable[Parameter]) -> Iterator[str]:
    for parameter in parameters:
        notes = (
            f"Default: {parameter.default}." if parameter.default else "",
            f"Variable: `{parameter.variable}`." if parameter.variable else "",
        )
        yield f"`{parameter.title}`\n: {' '.join(filter(None, (parameter.help, *notes)))}"
