"""Tables of exit codes, environment variables and files, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from crckpt.cli import command_reference
from crckpt.cli.command_reference import FILES, VARIABLES


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Make a table of Markdown."""
    head = tuple(titles)
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def exit_codes() -> str:
    """Make the table of exit codes."""
    return table(("code", "meaning"), ((str(code), meaning) for code, meaning in command_reference.exit_codes()))


def environment() -> str:
    """Make the table of environment variables."""
    return table(("variable", "meaning"), ((f"`{name}`", meaning) for name, meaning in VARIABLES))


def files() -> str:
    """Make the table of files."""
    return table(("path", "what it is"), ((f"`{name}`", meaning) for name, meaning in FILES))
