"""A failure as people read it."""

from __future__ import annotations

from crckpt.cli.render import error_text
from crckpt.errors import CrckptError


def test_what_others_named_cannot_reach_the_terminal() -> None:
    """Whoever binds a socket that a tree is connected to picks its name."""
    named = "a socket to @\x1b[31m\nX\udcff"
    said = error_text(CrckptError(named, hint=named, causes=(named, named)))
    assert said.replace("\n", "").isprintable()
    assert len(said.splitlines()) == 4
    said.encode()
