"""The command that the user typed, for hints that repeat it or name its options."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Final

REMOTE_STORE: Final = "--remote-store DIR"


class _Typed:
    arguments: tuple[str, ...] | None = None
    is_remote = False


def note_command(arguments: Sequence[str], *, is_remote: bool) -> None:
    """Note the words after `crckpt`, as they were typed; or that the user types on another host."""
    _Typed.arguments, _Typed.is_remote = None if is_remote else tuple(arguments), is_remote


def advise_sudo() -> str:
    """Advise to run the command again as root: name it, if a user of this host typed it."""
    if _Typed.arguments is None:
        return "run it again with sudo"
    # sudo(8) takes these variables on its command line, and drops all others that name a store.
    named = (f"{name}={value}" for name in ("CRCKPT_STORE", "CRCKPT_CONFIG") if (value := os.environ.get(name)))
    return shlex.join(("sudo", *named, "crckpt", *_Typed.arguments))


def name_store() -> str:
    """Name the option for the store of this host."""
    return REMOTE_STORE if _Typed.is_remote else "--store DIR"


def advise_space() -> str:
    """Advise what to do about a full store."""
    there = " there" if _Typed.is_remote else ""
    return f"free space{there} (crckpt rm, crckpt gc), or use a store on a larger disk: {name_store()}"
