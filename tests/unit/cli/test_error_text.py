"""A failure as people read it."""

from __future__ import annotations

from crckpt.cli.output import error_text
from crckpt.errors import CrckptError, PreflightRefused


def test_what_others_named_cannot_reach_the_terminal() -> None:
    """Whoever binds a socket that a tree is connected to picks its name."""
    named = "a socket to @\x1b[31m\nX\udcff"
    said = error_text(CrckptError(named, hint=named, causes=(named, named)))
    assert said.replace("\n", "").isprintable()
    assert len(said.splitlines()) == 4
    said.encode()


def test_several_reasons_are_said_once_each() -> None:
    """The first one is not the headline, nor its remedy that of all."""
    refusal = PreflightRefused(
        "PID 7 is taken", hint="end it", causes=("PID 7 is taken: end it", "x is gone: put it back")
    )
    assert error_text(refusal).splitlines() == [
        "crckpt: refused for 2 reasons:",
        "  - PID 7 is taken: end it",
        "  - x is gone: put it back",
    ]
