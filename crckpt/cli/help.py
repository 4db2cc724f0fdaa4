"""The help of crckpt and of its commands: plain text for 80 columns, with the options in panels of fixed names."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from crckpt.cli.output import form

COMMON: Final = "Common"
INCREMENTAL: Final = "Incremental"
CONNECTIONS: Final = "Connections"
DOWNTIME: Final = "Downtime"
UNFINISHED: Final = "Unfinished moves"
WHERE: Final = "Where"
ADVANCED: Final = "Advanced"
PANELS: Final = (COMMON, INCREMENTAL, CONNECTIONS, DOWNTIME, UNFINISHED, WHERE, ADVANCED)
"""The panels in their order. An option that names none is in the first."""

UNLISTED: Final = frozenset({"receive"})
"""Commands that only crckpt itself starts: they have a help, and are not listed or completed."""

_WIDTH: Final = 80
_WIDEST: Final = 100
_NARROWEST: Final = 40
# A longer label has its own line, and its text begins on the next one.
_LONGEST_LABEL: Final = 20

_BOLD: Final = re.compile(r"\*\*(.+?)\*\*|`(.+?)`")
_MARKED: Final = re.compile("\x01(.*?)\x02")

InvalidCommandLine: Any = typer.BadParameter.__bases__[0]
"""What typer raises for an invalid command line; it has no public name for it."""

Row = tuple[str, str]
"""A label, and the text beside it."""


class HelpfulCommand(TyperCommand):
    """A command whose help is laid out here. typer's own takes rich, which is slow to load, and 19 columns of text.

    Every command has the option --quiet, and all but those that only crckpt itself starts --json.
    """

    def __init__(self, *arguments: Any, params: Sequence[Any], **settings: Any) -> None:
        """As the base, which gets these parameters and the two options."""
        # `app.run` looks for --json itself: an invalid command line is reported as JSON, too.
        own = [_make_flag("--quiet", "-q", help="Print only errors and what you asked for.", callback=_set_quiet)]
        if settings.get("name") not in UNLISTED:
            own.insert(0, _make_flag("--json", help="Print one JSON document instead of text."))
        super().__init__(*arguments, params=[*params, *own], **settings)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the base, but have errors know what was typed, and which arguments are surplus (`extra`)."""
        # The parser takes words out of `args`.
        typed = tuple(args)
        # The parser's own error has these arguments only in its text.
        ctx.allow_extra_args = True
        try:
            extra = super().parse_args(ctx, args)
        except InvalidCommandLine as error:
            error.ctx, error.typed = error.ctx or ctx, typed
            raise
        if extra:
            surplus = InvalidCommandLine("surplus arguments", ctx)
            surplus.extra = extra
            raise surplus
        return extra

    def get_help(self, ctx: Any) -> str:
        """Return the whole help text."""
        parameters = self.get_params(ctx)
        arguments = [each for each in parameters if isinstance(each, TyperArgument)]
        options = [each for each in parameters if isinstance(each, TyperOption) and not each.hidden]
        panels: dict[str, list[Row]] = {"Arguments": [(_name(each), _text(each)) for each in arguments]}
        for panel in PANELS:
            of_panel = (each for each in options if (each.rich_help_panel or COMMON) == panel)
            panels[panel] = [(_label(each), _text(each)) for each in of_panel]
        words = (_name(each) if each.required else f"[{_name(each)}]" for each in arguments)
        usage = " ".join((ctx.command_path, "[OPTIONS]", *words))
        return _page(usage, self.help or "", panels)


class HelpfulGroup(TyperGroup):
    """All the commands, listed by `groups` of them: the title of each, and its commands."""

    groups: ClassVar[Mapping[str, Iterable[str]]] = {}

    def get_help(self, ctx: Any) -> str:
        """Return the whole help text."""
        options = [each for each in self.get_params(ctx) if isinstance(each, TyperOption)]
        panels = {
            title: [(name, self.commands[name].short_help or "") for name in names if name in self.commands]
            for title, names in self.groups.items()
        }
        panels["Options"] = [(_label(each), _text(each)) for each in options]
        return _page(f"{ctx.command_path} COMMAND [OPTIONS] [ARGUMENTS]", self.help or "", panels, self.epilog or "")


def default_text(parameter: TyperOption | TyperArgument) -> str:
    """Return the default of an option or argument as people read it; empty if there is none to tell."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    default = parameter.default
    if parameter.show_default is False or default in (None, False, (), "") or callable(default):
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def _make_flag(*names: str, **settings: Any) -> TyperOption:
    return TyperOption(param_decls=[*names], is_flag=True, default=False, expose_value=False, **settings)


def _set_quiet(_context: Any, _option: Any, wanted: bool) -> None:
    form.is_quiet = wanted


def _page(usage: str, description: str, panels: Mapping[str, list[Row]], epilog: str = "") -> str:
    # Those of the terminal, but never so many that a line is hard to read.
    width = max(_NARROWEST, min(shutil.get_terminal_size((_WIDTH, 0)).columns, _WIDEST))
    blocks = ["\n".join(_wrap(f"**Usage:** {usage}", width, hanging=7)), *_paragraphs(description, width)]
    labels = [label for rows in panels.values() for label, _ in rows if len(label) <= _LONGEST_LABEL]
    column = max(map(len, labels), default=0)
    for title, rows in panels.items():
        if rows:
            lines = (line for row in rows for line in _row(row, column, width))
            blocks.append("\n".join((_style(f"**{title}:**"), *lines)))
    return "\n\n".join((*blocks, *_paragraphs(epilog, width)))


def _paragraphs(text: str, width: int) -> Iterator[str]:
    """Wrap paragraphs; an indented one (examples) stays as it is."""
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("    "):
            yield "\n".join(line.removeprefix("  ") for line in paragraph.splitlines())
        elif paragraph:
            yield "\n".join(_wrap(paragraph, width))


def _row(row: Row, column: int, width: int) -> Iterator[str]:
    label, text = row
    indent = column + 4
    lines = _wrap(text, width - indent)
    first = f"  {_style(f'**{label}**')}"
    if len(label) > column:
        yield first
    else:
        yield f"{first}{' ' * (column - len(label))}  {next(lines, '')}".rstrip()
    yield from (f"{' ' * indent}{line}" for line in lines)


def _wrap(text: str, width: int, hanging: int = 0) -> Iterator[str]:
    """Break a paragraph into lines; all but the first are indented by `hanging`."""
    # Marks have no width, so textwrap would break lines too early. A word carries its own: a line may end in between.
    marked = _BOLD.sub(lambda found: " ".join(f"\x01{word}\x02" for word in (found[1] or found[2]).split()), text)
    line, used = "", 0
    for word in marked.split():
        length = len(word.replace("\x01", "").replace("\x02", ""))
        if line and used + 1 + length > width:
            yield _replace_marks(line)
            line, used = " " * hanging + word, hanging + length
        else:
            line, used = (f"{line} {word}", used + 1 + length) if line else (word, length)
    if line:
        yield _replace_marks(line)


def _style(text: str) -> str:
    return _replace_marks(_BOLD.sub("\x01\\1\\2\x02", text))


def _replace_marks(line: str) -> str:
    is_bold_shown = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return _MARKED.sub("\033[1m\\1\033[0m" if is_bold_shown else "\\1", line)


def _name(argument: TyperArgument) -> str:
    return argument.metavar or (argument.name or "").upper()


def _label(option: TyperOption) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        return names.replace("--", "--[no-]")
    return names if option.is_flag else f"{names} {option.metavar}"


def _text(parameter: TyperOption | TyperArgument) -> str:
    default = default_text(parameter)
    notes = (default and f"[default: {default}]", f"[env: {parameter.envvar}]" if parameter.envvar else "")
    return " ".join((parameter.help or "", *filter(None, notes)))
