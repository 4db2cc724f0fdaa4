"""The command that the user typed, for hints that repeat it or name its options."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence


class SourceHint(str):
    """A hint of the destination of a move, for the user of its source: it names an option that is typed there."""

    __slots__ = ()


class _Typed:
    arguments: tuple[str, ...] | None = None
    is_remote = False


def note_command(arguments: Sequence[str], *, is_remote: bool) -> None:
    """Note the words after `crckpt`, as they were typed; or that the user types on another host."""
    _Typed.arguments, _Typed.is_remote = None if is_remote else tuple(arguments), is_remote


def advise_sudo() -> str:
    """Advise to run the command again as root: name it, if a user of this host typed it."""
    if _Typed.is_remote:
        return SourceHint("log in as root there, or use sudo: --remote-crckpt 'sudo crckpt'")
    if _Typed.arguments is None:
        return "run it again with sudo"
    # sudo(8) takes these variables on its command line, and drops all others that name a store.
    named = (f"{name}={value}" for name in ("CRCKPT_STORE", "CRCKPT_CONFIG") if (value := os.environ.get(name)))
    return shlex.join(("sudo", *named, "crckpt", *_Typed.arguments))


def name_store(advice: str = "name another store") -> str:
    """Return the hint to follow this advice by the option for the store of this host."""
    return SourceHint(f"{advice}: --remote-store DIR") if _Typed.is_remote else f"{advice}: --store DIR"


def advise_space() -> str:
    """Advise what to do about a full store."""
    there = " there" if _Typed.is_remote else ""
    return name_store(f"free space{there} (crckpt rm, crckpt gc), or use a store on a larger disk")
