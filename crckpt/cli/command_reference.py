"""The commands as values, for the man pages and the documents: their words, arguments and options."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from crckpt.cli.app import COMMANDS, make_parser
from crckpt.cli.help import COMMON, PANELS, default_text

_EXAMPLES: Final = re.compile(r"^For example:\n\n(?P<lines>(?: {4}.*\n?)+)", re.MULTILINE)


class Parameter(Struct, frozen=True):
    """An argument or an option. `names` are as typed (`--tcp`, `-v`); texts are Markdown.

    - `value`: the name or the choices of its value; empty for a flag
    - `default`: empty if nothing is used by default
    - `panel`: the heading under which the help lists it
    """

    names: tuple[str, ...]
    value: str
    help: str
    default: str
    variable: str
    panel: str
    is_required: bool

    @property
    def title(self) -> str:
        """The parameter as the help shows it: `--tcp keep|close`."""
        return ", ".join(f"{name} {self.value}" if self.value and self.is_option else name for name in self.names)

    @property
    def is_option(self) -> bool:
        """Whether it begins with a dash."""
        return self.names[0].startswith("-")


class Command(Struct, frozen=True):
    """A command: `crckpt NAME OPERANDS`. `paragraphs` are Markdown; `examples` are command lines."""

    name: str
    summary: str
    operands: str
    paragraphs: tuple[str, ...]
    examples: tuple[str, ...]
    arguments: tuple[Parameter, ...]
    options: tuple[Parameter, ...]

    @property
    def panels(self) -> dict[str, tuple[Parameter, ...]]:
        """The options under their headings, in the order of the help."""
        panels = {name: tuple(option for option in self.options if option.panel == name) for name in PANELS}
        return {name: options for name, options in panels.items() if options}


def read_commands() -> tuple[Command, ...]:
    """Read all commands from their parsers."""
    return tuple(map(_read_command, COMMANDS))


def _read_command(name: str) -> Command:
    parser = make_parser(name)
    shown = [parameter for parameter in parser.params if not getattr(parameter, "hidden", False)]
    paragraphs, examples = _split_examples(parser.help or "")
    parameters = tuple(map(_read_parameter, shown))
    arguments = tuple(one for one in parameters if not one.is_option)
    operands = " ".join(("[OPTIONS]", *map(_word, arguments)))
    options = tuple(one for one in parameters if one.is_option)
    return Command(name, COMMANDS[name][1], operands, paragraphs, examples, arguments, options)


def _word(argument: Parameter) -> str:
    word = argument.names[0]
    return word if argument.is_required or word.startswith("[") else f"[{word}]"


def _split_examples(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a help text into its paragraphs and the command lines of its examples."""
    examples = tuple(line.strip() for found in _EXAMPLES.finditer(text) for line in found["lines"].splitlines())
    paragraphs = (" ".join(paragraph.split()) for paragraph in _EXAMPLES.sub("", text).split("\n\n"))
    return tuple(filter(None, paragraphs)), examples


def _read_parameter(parameter: Any) -> Parameter:
    """Read what typer knows; its parameters have no public type."""
    is_option = parameter.param_type_name == "option"
    names = (
        (*parameter.opts, *parameter.secondary_opts) if is_option else (parameter.metavar or parameter.name.upper(),)
    )
    return Parameter(
        names=tuple(sorted(names, key=lambda name: not name.startswith("--"))),
        value=parameter.metavar if is_option and not parameter.is_flag else "",
        help=parameter.help or "",
        default=default_text(parameter),
        variable=parameter.envvar or "",
        panel=getattr(parameter, "rich_help_panel", None) or COMMON,
        is_required=parameter.required,
    )
