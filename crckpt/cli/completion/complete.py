"""What may come next on a command line."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from crckpt.cli import find_command
from crckpt.cli.app import COMMANDS, make_parser
from crckpt.cli.completion.checkpoints import StoredNames
from crckpt.cli.completion.targets import find_hosts, find_targets
from crckpt.cli.format import on_one_line
from crckpt.cli.help import UNLISTED
from crckpt.cli.options import make_context
from crckpt.ops.attach import list_terminals

Words: TypeAlias = Iterator[tuple[str, str]]
"""Words and their descriptions."""

_Parameter: TypeAlias = Any  # a Parameter of click, of which typer has its own copy
_GLOBAL: Final = (("--help", "Show this message and exit."), ("--version", "Print the versions of crckpt and CRIU."))
_WIDEST: Final = 64


class CommandLine:
    """A command and the words after it, of which the last is being typed."""

    def __init__(self, command: str, words: Sequence[str]) -> None:
        self.parameters: Sequence[_Parameter] = make_parser(command).params
        self.typed = words[-1]
        self.values: dict[str, str] = {}
        self.positional: list[str] = []
        self.options_end = False
        self.open_option: _Parameter | None = None
        for word in words[:-1]:
            self._take(word)

    def next_argument(self) -> _Parameter | None:
        """Return the argument that a word here would be."""
        arguments = [each for each in self.parameters if each.param_type_name == "argument"]
        # -1: the last argument takes any number of words (REF...).
        last = arguments[-1:] if arguments and arguments[-1].nargs == -1 else []
        return next(iter(arguments[len(self.positional) :] or last), None)

    def option_named(self, word: str) -> _Parameter | None:
        """Find an option by its name."""
        return next((each for each in self.parameters if word in (*each.opts, *each.secondary_opts)), None)

    @property
    def stored_names(self) -> StoredNames:
        """The names in the store of the command line."""
        # typer reads these variables only while it parses a whole command line.
        variables = {"store": os.environ.get("CRCKPT_STORE"), "config": os.environ.get("CRCKPT_CONFIG")}
        store, config = (self.values.get(name) or variable for name, variable in variables.items())
        return StoredNames(make_context(Path(store) if store else None, config=Path(config) if config else None).store)

    def _take(self, word: str) -> None:
        if self.open_option is not None:
            self.values[self.open_option.name] = word
            self.open_option = None
        # A dash alone is stdin: an argument.
        elif self.options_end or not word.startswith("-") or word == "-":
            self.positional.append(word)
        elif word == "--":
            self.options_end = True
        else:
            name, equals, value = word.partition("=")
            option = self.option_named(name)
            if option is None or option.is_flag:
                return
            if equals:
                self.values[option.name] = value
            else:
                self.open_option = option


def complete(words: Sequence[str]) -> Iterator[str]:
    """Complete the last word. The lines are those of the protocol."""
    typed = words[-1] if words else ""
    # The last word is being typed: it is no command yet.
    command = find_command(words[:-1])
    if not command or (command == "help" and len(words) == words.index("help") + 2):
        listed = (pair for pair in COMMANDS.items() if pair[0] not in UNLISTED)
        yield from _as_lines(_GLOBAL if typed.startswith("-") else listed, typed)
    elif command in COMMANDS:
        yield from _complete_command(CommandLine(command, words[list(words).index(command) + 1 :]))


def _complete_command(line: CommandLine) -> Iterator[str]:
    if line.open_option is not None:
        return _complete_value(line, line.open_option, line.typed)
    if line.typed.startswith("-") and line.typed != "-" and not line.options_end:
        name, equals, value = line.typed.partition("=")
        option = line.option_named(name)
        if equals and option is not None:
            return _complete_value(line, option, value, f"{name}=")
        return _as_lines(_options(line), line.typed)
    argument = line.next_argument()
    return _complete_value(line, argument, line.typed) if argument else _as_lines(_options(line), line.typed)


def _options(line: CommandLine) -> Words:
    for option in line.parameters:
        if (
            option.param_type_name == "option"
            and not option.hidden
            and (option.multiple or option.name not in line.values)
        ):
            yield from ((name, option.help or "") for name in (*option.opts, *option.secondary_opts) if "--" in name)
    yield _GLOBAL[0]


def _complete_value(line: CommandLine, parameter: _Parameter, typed: str, before: str = "") -> Iterator[str]:
    if choices := getattr(parameter.type, "choices", None):
        return _as_lines(((each, "") for each in choices), typed, before)
    if parameter.type.name in ("path", "file", "directory", "filename"):
        is_directory = parameter.name in ("directory", "store", "staging") or parameter.type.name == "directory"
        return iter(("directories" if is_directory else "files",))
    words = _FINDERS.get(parameter.name)
    found = list(_as_lines(words(line, typed), typed, before)) if words else []
    # One line is the heading alone: nothing in the store fits.
    if parameter.name in _OR_FILES and len(found) <= 1:
        return iter(("files",))
    return iter(found)


def _as_lines(words: Words | Sequence[tuple[str, str]], typed: str, before: str = "") -> Iterator[str]:
    yield "words"
    known = set[str]()
    for word, description in words:
        # A tab or a line break in a name would break the protocol. bash would insert what two lines have in common: of
        # a word that is there twice, its description, too.
        if word.startswith(typed) and word == on_one_line(word) and word not in known:
            known.add(word)
            # The first sentence of the description, or as much of it as fits beside the word.
            sentence = re.split(r"[.:] ", " ".join(description.split()))[0]
            plain = sentence.replace("`", "").replace("**", "").removesuffix(".")
            yield f"{before}{word}\t{on_one_line(textwrap.shorten(plain, _WIDEST, placeholder=' ...'))}"


# What an argument may be, by the names of the parameters of all commands.
_FINDERS: Final[Mapping[str, Callable[[CommandLine, str], Words]]] = {
    "target": lambda line, typed: chain(find_targets(typed), line.stored_names.jobs()),
    "end": lambda _, typed: find_targets(typed),
    "terminal": lambda *_: ((each.tree.job, f"PID {each.tree.root}, {each.tree.comm}") for each in list_terminals()),
    "tty": lambda *_: iter((("new", "a new terminal, for crckpt attach"), ("null", "nothing"))),
    "job": lambda line, _: line.stored_names.jobs(),
    **dict.fromkeys(("ref", "refs", "first", "second", "subject"), lambda line, typed: line.stored_names.refs(typed)),
    "name": lambda line, _: line.stored_names.tags(line.positional[0]),
    "pid": lambda line, _: line.stored_names.processes(line.positional[0]),
    "host": lambda _, typed: find_hosts(typed),
    "resume": lambda line, _: line.stored_names.moves(),
}
_OR_FILES: Final = frozenset({"subject", "tty"})
