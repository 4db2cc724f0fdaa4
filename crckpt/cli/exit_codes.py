"""The exit codes of crckpt with their meanings, for the man pages and the documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from crckpt.errors import CommandFailure

_OTHERS: Final = (
    (0, "The command succeeded."),
    (1, "A bug in crckpt; or the command succeeded, but its output could not be written."),
)


def exit_codes() -> tuple[tuple[int, str], ...]:
    """List the codes in order; the meaning of most is the docstring of their error."""
    # Other modules have errors of their own, with the codes of these.
    errors = (error for error in _subclasses(CommandFailure) if error.__module__ == CommandFailure.__module__)
    meanings = {error.exit_code: " ".join((error.__doc__ or "").split()) for error in errors}
    return tuple(sorted({**meanings, **dict(_OTHERS)}.items()))


def _subclasses(error: type[CommandFailure]) -> Iterator[type[CommandFailure]]:
    for below in error.__subclasses__():
        yield below
        yield from _subclasses(below)
