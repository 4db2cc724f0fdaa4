"""What the man pages and the documents list: commands as values, variables, files and exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from crckpt.cli.app import COMMANDS, make_parser
from crckpt.cli.help import COMMON, PANELS, default_text
from crckpt.errors import CommandFailure

_EXAMPLES: Final = re.compile(r"^For example:\n\n(?P<lines>(?: {4}.*\n?)+)", re.MULTILINE)

VARIABLES: Final = (
    ("CRCKPT_STORE", "The store, as `--store`. It wins over the configuration file."),
    ("CRCKPT_CONFIG", "The configuration file, as `--config`."),
    ("CRCKPT_CRIU", "The CRIU to try first, after `--criu` and before the configuration file."),
    ("PATH", "Without a CRIU of these, crckpt looks for `criu` here, then in `/usr/local/lib/crckpt/criu`."),
    ("XDG_DATA_HOME", "Other users than root: the store is `crckpt` in it. Default: `~/.local/share`."),
    ("XDG_CONFIG_HOME", "Other users than root: the configuration is `crckpt.yaml` in it. Default: `~/.config`."),
    ("XDG_CACHE_HOME", "Other users than root: which CRIU works is remembered in it. Default: `~/.cache`."),
    ("XDG_RUNTIME_DIR", "Other users than root: sockets of trackers are in it. Default: `/tmp`."),
    ("SSH_CONNECTION", "The ends of the ssh connection: neither can move with a program (`--move-ip`)."),
    ("COLUMNS", "The width of help and of `crckpt list`, in place of the terminal's."),
    ("NO_COLOR", "If it is set, output has no colours, and help no bold words. `TERM=dumb` does the same for help."),
)
"""Each with its meaning in Markdown."""

FILES: Final = (
    ("/etc/crckpt.yaml", "The configuration. For users other than root: `~/.config/crckpt.yaml`."),
    ("/var/lib/crckpt", "The store. For users other than root: `~/.local/share/crckpt`."),
    ("/usr/local/lib/crckpt/criu", "A CRIU for crckpt alone, where `PATH` has none that works."),
    ("/var/cache/crckpt/criu.json", "Which CRIU works on this kernel. May be deleted."),
    ("/run/crckpt", "Sockets of trackers and of new terminals, and which trees are tracked."),
    ("/var/log/crckpt/JOB.log", "What a program writes to its new terminal. From 10 MiB on it becomes `JOB.log.1`."),
)

_OTHERS: Final = (
    (0, "The command succeeded."),
    (1, "A bug in crckpt; or the command succeeded, but its output could not be written."),
)


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
    text = parser.help or ""
    examples = tuple(line.strip() for found in _EXAMPLES.finditer(text) for line in found["lines"].splitlines())
    paragraphs = (" ".join(paragraph.split()) for paragraph in _EXAMPLES.sub("", text).split("\n\n"))
    parameters = tuple(map(_read_parameter, shown))
    arguments = tuple(one for one in parameters if not one.is_option)
    words = (one.names[0] if one.is_required else f"[{one.names[0].strip('[]')}]" for one in arguments)
    options = tuple(one for one in parameters if one.is_option)
    operands = " ".join(("[OPTIONS]", *words))
    return Command(name, COMMANDS[name], operands, tuple(filter(None, paragraphs)), examples, arguments, options)


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


def exit_codes() -> tuple[tuple[int, str], ...]:
    """List the codes in order; the meaning of most is the docstring of their error."""
    # Other modules have errors of their own, with the codes of these.
    errors = (error for error in _subclasses(CommandFailure) if error.__module__ == CommandFailure.__module__)
    meanings = {error.exit_code: " ".join((error.__doc__ or "").split()) for error in errors}
    return tuple(sorted({**meanings, **dict(_OTHERS)}.items()))


def _subclasses(error: type[CommandFailure]) -> Iterator[type[CommandFailure]]:
    for below in error.__subclasses__():
        yield below
        yield from _subclasses(below)
