"""The command that the user typed, for hints that repeat it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence


class _Typed:
    arguments: tuple[str, ...] | None = None


def note_command(arguments: Sequence[str]) -> None:
    """Note the words after `crckpt`, as they were typed."""
    _Typed.arguments = tuple(arguments)


def advise_sudo() -> str:
    """Advise to run the command again as root: name it, if a user of this host typed it."""
    if _Typed.arguments is None:
        return "run it again with sudo"
    # sudo(8) takes these variables on its command line, and drops all others that name a store.
    named = (f"{name}={value}" for name in ("CRCKPT_STORE", "CRCKPT_CONFIG") if (value := os.environ.get(name)))
    return shlex.join(("sudo", *named, "crckpt", *_Typed.arguments))
