"""Ask a person on the terminal for a yes or no."""

from __future__ import annotations

import sys

import typer


def can_ask() -> bool:
    """Return whether there is a terminal to ask on."""
    # Python has no sys.stdin if descriptor 0 was closed.
    return sys.stdin is not None and sys.stdin.isatty()


def ask(question: str) -> bool:
    """Ask a question on stderr; without an answer (^D) it is no."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        typer.echo("", err=True)
        return False
