"""Word the parser's complaints about a command line as crckpt words its own, and suggest what was meant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Final

from crckpt.cli.help import UNLISTED
from crckpt.errors import UsageError

# The parser's names of types.
_NUMBERS: Final = {"int": "a whole number", "integer": "a whole number", "float": "a number"}

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
    if hasattr(error, "extra"):
        # $(pgrep NAME) may find several PIDs.
        one = "name one process; its descendants are included: " if command in _WITH_TARGET else ""
        return UsageError(f"there are too many arguments: {' '.join(error.extra)}", hint=f"{one}{hint}")
    return UsageError(_describe(error), hint=hint)


def _describe(error: Any) -> str:
    """Say what is wrong with a value, or with a missing one. Each class of the parser has attributes of its own."""
    if hasattr(error, "option_name"):
        parameters = error.ctx.command.params if error.ctx is not None else ()
        with_value = [name for each in parameters if not getattr(each, "is_flag", False) for name in each.opts]
        return f"{error.option_name} {'needs a value' if error.option_name in with_value else 'takes no value'}"
    parameter = getattr(error, "param", None)
    if parameter is None:
        return str(error.format_message())
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.human_readable_name
    if hasattr(error, "param_type"):
        return f"{name} is missing"
    if (number := _NUMBERS.get(parameter.type.name.removesuffix(" range"))) is None:
        return f"{name}: {error.message.removesuffix('.')}"
    least, most = getattr(parameter.type, "min", None), getattr(parameter.type, "max", None)
    limits = "" if least is None else f" of at least {least}" if most is None else f" between {least} and {most}"
    # The exception has the value only in its text.
    values, *_ = error.ctx.command.make_parser(error.ctx).parse_args(list(error.typed))
    value = values[parameter.name]
    return f"{name}: {' '.join(value) if parameter.nargs != 1 else value} is not {number}{limits}"


def _closest(option: str, near: Sequence[str]) -> list[str]:
    """Return the options that are really near. The parser counts the hyphens, too, and finds --tcp near --stopp."""

    def similarity(name: str) -> float:
        return SequenceMatcher(None, name.lstrip("-"), option.lstrip("-")).ratio()

    least = min(_NEAR, max(map(similarity, near), default=_NEAR))
    return [name for name in near if similarity(name) >= least]


def _hint(near: Sequence[str], everything: str) -> str:
    return f"did you mean {' or '.join(near)}? {everything}" if near else everything
