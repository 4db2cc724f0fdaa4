"""The command line: one command a file; the only place that knows typer and rich."""

from collections.abc import Sequence


def command_in(arguments: Sequence[str]) -> str:
    """The first word that is no option; empty if there is none."""
    return next((word for word in arguments if not word.startswith("-")), "")
