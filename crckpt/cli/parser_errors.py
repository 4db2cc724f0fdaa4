"""Word the parser's complaints about a command line as crckpt words its own, and suggest what was meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Final

from crckpt.cli.help import UNLISTED
from crckpt.errors import UsageError

# The parser's words: of typer 0.28 (`_click/exceptions.py`, `_click/types.py`), and of the click that typer 0.20 uses.
_EXTRA: Final = re.compile(r"Got unexpected extra argument(?:\(s\)|s)? \((.+)\)")
_OTHERS: Final = (
    (re.compile(r"Missing argument '(.+)'\."), r"\1 is missing"),
    (re.compile(r"Option '(.+)' requires an argument\."), r"\1 needs a value"),
    (re.compile(r"Option '(.+)' does not take a value\."), r"\1 takes no value"),
    (re.compile(r"Invalid value for '(.+?)': (\S+) is not in the range x>=(-?\d+)\."), r"\1: \2 is less than \3"),
    (
        re.compile(r"Invalid value for '(.+?)': (\S+) is not in the range (-?\d+)<=x<=(-?\d+)\."),
        r"\1: \2 is not between \3 and \4",
    ),
    (
        re.compile(r"Invalid value for '(.+?)': (.+) is not a valid int(?:eger)?(?: range)?\."),
        r"\1: \2 is not a whole number",
    ),
    (re.compile(r"Invalid value for '(.+?)': (.+) is not a valid float\."), r"\1: \2 is not a number"),
    # Last: it matches what those above match, too.
    (re.compile(r"Invalid value for '(.+?)': (.+?)\.?"), r"\1: \2"),
)

_WITH_TARGET: Final = ("doctor", "dump", "pre-dump")

# A share of equal letters. Where no option reaches it, the nearest is suggested all the same.
_NEAR: Final = 0.65

# What other programs (criu, git, restic, podman) call it. The parser would suggest `report` for `repair`.
SYNONYMS: Final = {
    "check": "doctor",
    "checkpoint": "dump",
    "delete": "rm",
    "forget": "rm",
    "fsck": "verify --repair",
    "inspect": "show",
    "ls": "list",
    "prune": "gc",
    "remove": "rm",
    "repair": "verify --repair",
    "save": "dump",
    "snapshot": "dump",
    "snapshots": "list",
    "trackers": "ps",  # its name in 0.4.0
    "untag": "tag --remove",
    "version": "--version",
}


def invalid_command_line(error: Any, command: str, commands: Collection[str]) -> UsageError:
    """Make the error for a complaint of the parser, of a class that typer does not name, about this command.

    `commands` are all that there are.
    """
    if command and command not in commands:
        listed = [name for name in commands if name not in UNLISTED]
        names = [SYNONYMS[command]] if command in SYNONYMS else get_close_matches(command, listed)
        near = [f"crckpt {name}" for name in names]
        return UsageError(f"there is no command {command}", hint=_hint(near, "all commands: crckpt help"))
    hint = f"crckpt help {command}".rstrip()
    if hasattr(error, "possibilities"):
        everything = f"all options: {hint}" if command else f"options of a command come after it: {hint}"
        near = _closest(error.option_name, sorted(error.possibilities or ()))
        return UsageError(f"there is no option {error.option_name}", hint=_hint(near, everything))
    message = error.format_message()
    if found := _EXTRA.fullmatch(message):
        # $(pgrep NAME) may find several PIDs.
        one = "name one process; its descendants are included: " if command in _WITH_TARGET else ""
        return UsageError(f"there are too many arguments: {found[1]}", hint=f"{one}{hint}")
    for pattern, words in _OTHERS:
        if found := pattern.fullmatch(message):
            return UsageError(found.expand(words), hint=hint)
    # Another release of typer may use other words: they are better than none.
    return UsageError(message, hint=hint)


def _closest(option: str, near: Sequence[str]) -> list[str]:
    """Return the options that are really near. The parser counts the hyphens, too, and finds --tcp near --stopp."""

    def similarity(name: str) -> float:
        return SequenceMatcher(None, name.lstrip("-"), option.lstrip("-")).ratio()

    least = min(_NEAR, max(map(similarity, near), default=_NEAR))
    return [name for name in near if similarity(name) >= least]


def _hint(near: Sequence[str], everything: str) -> str:
    return f"did you mean {' or '.join(near)}? {everything}" if near else everything
