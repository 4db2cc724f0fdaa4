"""The command line: one file for each command. Only this folder knows typer and rich."""

from collections.abc import Sequence


def find_command(arguments: Sequence[str]) -> str:
    """Find the command on a command line: the first word that is not an option; empty if there is none."""
    return next((word for word in arguments if not word.startswith("-")), "")
