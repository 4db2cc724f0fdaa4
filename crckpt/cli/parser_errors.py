"""Word the parser's complaints about a command line as crckpt words its own, and suggest what was meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final

from crckpt.errors import UsageError

# The parser's words: of typer 0.28 (`_click/exceptions.py`, `_click/types.py`), and of the click that typer 0.20 uses.
_COMMAND: Final = re.compile(r"No such command '(?P<name>.+?)'\.(?: \(?Did you mean (?:one of: )?(?P<near>.+?)\?.*)?")
_OPTION: Final = re.compile(
    r"No such option:? '?(?P<name>[^\s']+?)'?\.?"
    r"(?: \(?(?:Possible options|Did you mean)(?: one of)?:? (?P<near>.+?)\??\)?)?"
)
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


def invalid_command_line(message: str, command: str) -> UsageError:
    """Make the error for a complaint of the parser; `command` is empty if the command line names none."""
    if found := _COMMAND.fullmatch(message):
        name = found["name"]
        near = [f"crckpt {near}" for near in ([SYNONYMS[name]] if name in SYNONYMS else _names(found["near"]))]
        return UsageError(f"there is no command {name}", hint=_hint(near, "all commands: crckpt help"))
    everything = f"all options: crckpt help {command}" if command else "options of a command come after it: crckpt help"
    if found := _OPTION.fullmatch(message):
        near = _closest(found["name"], _names(found["near"]))
        return UsageError(f"there is no option {found['name']}", hint=_hint(near, everything))
    if found := _EXTRA.fullmatch(message):
        # $(pgrep NAME) may find several PIDs.
        one = "name one process; its descendants are included: " if command in _WITH_TARGET else ""
        return UsageError(f"there are too many arguments: {found[1]}", hint=f"{one}crckpt help {command}".rstrip())
    for pattern, words in _OTHERS:
        if found := pattern.fullmatch(message):
            return UsageError(found.expand(words), hint=f"crckpt help {command}".rstrip())
    # Another release of typer may use other words: they are better than none.
    return UsageError(message, hint=f"crckpt help {command}".rstrip())


def _names(listed: str | None) -> list[str]:
    return [name.strip(" '") for name in re.split(r",| or ", listed or "") if name.strip(" '")]


def _closest(option: str, near: Sequence[str]) -> list[str]:
    """Return the options that are really near. The parser counts the hyphens, too, and finds --tcp near --stopp."""

    def similarity(name: str) -> float:
        return SequenceMatcher(None, name.lstrip("-"), option.lstrip("-")).ratio()

    least = min(_NEAR, max(map(similarity, near), default=_NEAR))
    return [name for name in near if similarity(name) >= least]


def _hint(near: Sequence[str], everything: str) -> str:
    return f"did you mean {' or '.join(near)}? {everything}" if near else everything
