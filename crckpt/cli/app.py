"""Run a command line: find the command, and turn a failure into a message and an exit code.

The parser's complaints are worded as crckpt words its own, with a suggestion of what was meant.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import typer

from crckpt.cli import find_command
from crckpt.cli.help import UNLISTED, HelpfulCommand, HelpfulGroup, InvalidCommandLine
from crckpt.cli.output import discard, error_document, error_text, form
from crckpt.errors import CommandFailure, CrckptError, HostCannot, Interrupted, StoreUnusable, UsageError
from crckpt.host import cold_start
from crckpt.host.process.own_limits import is_out_of_memory
from crckpt.host.process.signals import interrupts_deferred
from crckpt.host.process.typed_command import note_command

GROUPS: Final = {
    "Checkpoint and restore": {
        "dump": "Checkpoint a running process tree.",
        "restore": "Bring a checkpointed tree back to life.",
        "migrate": "Move a running process tree to another host.",
        "attach": "Connect your terminal to a restored program.",
        "rehearse": "Try out a restore in isolation.",
        "pre-dump": "Copy a tree's memory while it runs.",
        "ps": "List crckpt's processes and locks, or end a tracker.",
    },
    "Look into checkpoints": {
        "list": "List checkpoints.",
        "show": "Show what a checkpoint contains.",
        "diff": "Show what differs between two checkpoints.",
        "core": "Write a process of a checkpoint as a core file, for gdb.",
    },
    "Look after the store": {
        "verify": "Check that checkpoints are undamaged.",
        "tag": "Give a checkpoint a tag.",
        "rm": "Remove checkpoints.",
        "gc": "Free space: remove what no checkpoint uses.",
        "export": "Write a checkpoint as plain CRIU images.",
        "import": "Store plain CRIU images as a checkpoint.",
    },
    "Check the host, explain failures": {
        "doctor": "Check this host, or whether a tree can be checkpointed.",
        "config": "Show the settings that are in force, and where each comes from.",
        "install-criu": "Find or download a CRIU that works here.",
        "explain": "Explain why CRIU failed, from its log.",
        "report": "Make an archive for a bug report.",
    },
    "Started by crckpt itself": {"receive": "Receive a process: crckpt migrate starts this over ssh."},
}
"""All commands in their groups, and what the list of commands says of each."""

COMMANDS: Final = {name: summary for group in GROUPS.values() for name, summary in group.items()}
# A command is a function of its name in a module of its name. These two names are words of Python.
_FUNCTIONS: Final = {"list": "list_checkpoints", "import": "import_images"}
_MODULES: Final = {"import": "import_images"}
_WITHOUT_STORE: Final = frozenset({"attach", "explain", "install-criu", "ps"})
_WITH_CRIU: Final = frozenset(
    {"config", "doctor", "dump", "migrate", "pre-dump", "receive", "rehearse", "report", "restore"}
)


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


class Commands(HelpfulGroup):
    """The list of all commands, as the help shows it."""

    groups = {title: tuple(group) for title, group in GROUPS.items() if not UNLISTED & set(group)}  # noqa: RUF012 the base says that it is read only


def _print_version(wanted: bool) -> None:
    if wanted:
        # `__main__` answers `crckpt --version` alone before typer is loaded, so this is rare.
        from crckpt.ops.version import version

        typer.echo(version())
        raise typer.Exit


def _options(
    _version: bool = typer.Option(
        False, "--version", "-V", callback=_print_version, is_eager=True, help="Print the versions of crckpt and CRIU."
    ),
) -> None:
    """Options before the command."""


def make_app(command: str) -> typer.Typer:
    """Make the parser of the command line. It has this command alone, or all of them for the help."""
    app = typer.Typer(
        name="crckpt",
        cls=Commands,
        # crckpt completes words itself (`completion`), without loading all commands.
        add_completion=False,
        # Both would load rich, which takes longer than many a command.
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Checkpoint running Linux process trees and restore them later, on this host or on another.",
        epilog="Start with `crckpt doctor`, then `crckpt dump PID JOB` and `crckpt restore JOB`.\n\n"
        "`crckpt help COMMAND` explains a command and its options.",
    )
    # Without this, typer takes a single command for the whole program, and its name for an argument.
    app.callback()(_options)
    if command in COMMANDS:
        # Loading all the commands would take longer than most of them run.
        name = command.replace("-", "_")
        module = importlib.import_module(f"crckpt.cli.{_MODULES.get(command, name)}")
        run_command = getattr(module, _FUNCTIONS.get(command, name))
        if command not in _WITHOUT_STORE:
            # The list of commands does without it.
            from crckpt.cli.options import with_places

            places = ("store", "config", "criu") if command in _WITH_CRIU else ("store", "config")
            run_command = with_places(run_command, places)
        app.command(command, cls=HelpfulCommand, short_help=COMMANDS[command])(run_command)
        return app
    for name, summary in COMMANDS.items():
        app.command(name, short_help=summary)(_never_run)
    return app


def _never_run() -> None:
    """Stand for a command in the list of all, where none of them is to be run."""


def make_parser(command: str) -> Any:
    """Make the parser of one command, of a class that typer does not name."""
    return typer.main.get_command(make_app(command)).commands[command]  # type: ignore[attr-defined]


def run(arguments: Sequence[str]) -> int:
    """Run a command line, and return its exit code."""
    if not arguments:
        run(["--help"])
        return UsageError.exit_code
    if arguments[0] == "help":
        # With the name of a command its help, else that of all; `help help`, too, is the help of all.
        arguments = [*(word for word in arguments if word != "help"), "--help"]
    # Not from the parser: an invalid command line is reported as JSON, too. The parser sets `is_quiet`.
    form.command = command = find_command(arguments)
    form.as_json, form.is_quiet = "--json" in arguments, False
    note_command(arguments, is_remote=command in UNLISTED)
    try:
        # An import might swallow an interruption.
        with interrupts_deferred():
            app = make_app(command)
        # standalone_mode: typer would print errors, and exit, by itself.
        code = app(args=list(arguments), prog_name="crckpt", standalone_mode=False)
        # crckpt ends without Python's own flush. A failure here is still reported.
        sys.stdout.flush()
        if command in COMMANDS:
            # Only now is all loaded that the command needs.
            cold_start.note(command)
    except (CrckptError, Interrupted) as error:
        return _report(error)
    except InvalidCommandLine as error:
        return _report(invalid_command_line(error, command))
    except (BrokenPipeError, SystemExit):  # while typer wrote a help text
        discard(sys.stdout)
        return 0
    except Exception as error:
        return _report_unexpected(error)
    return code if isinstance(code, int) else 0


def _report_unexpected(error: Exception) -> int:
    # First: a lack of memory may be an OSError, too.
    if is_out_of_memory(error):
        hint = "free memory, or raise the limit: ulimit -v unlimited; systemd: MemoryMax=infinity"
        return _report(HostCannot(f"the host has too little memory for crckpt {form.command}", hint=hint))
    if isinstance(error, OSError):
        # Rare, and it loads what runs CRIU, which most commands do without.
        from crckpt.ops.failures import to_crckpt_error

        return _report(to_crckpt_error(error, StoreUnusable, f"crckpt {form.command}"))
    trace = traceback.format_exc()
    # On stderr with --json, too: stdout has the document and nothing else.
    sys.stderr.write(trace)
    said = f"this is a bug in crckpt: {trace.strip().splitlines()[-1]}"
    return _report(CrckptError(said, hint="report it with the lines above and an archive: crckpt report"))


def _report(error: CommandFailure) -> int:
    # If stdout takes nothing, the message goes to stderr.
    if form.as_json:
        with suppress(OSError):
            sys.stdout.write(json.dumps(error_document(error), indent=2) + "\n")
            sys.stdout.flush()
            return error.exit_code
    # Nobody can be told if stderr takes nothing; the exit code still tells.
    with suppress(OSError):
        sys.stderr.write(error_text(error))
    return error.exit_code


def invalid_command_line(error: Any, command: str) -> UsageError:
    """Make the error for a complaint of the parser, of a class that typer does not name, about this command."""
    # Rarely needed and slow to import.
    from difflib import get_close_matches

    if command and command not in COMMANDS:
        listed = [name for name in COMMANDS if name not in UNLISTED]
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
    from difflib import SequenceMatcher

    def similarity(name: str) -> float:
        return SequenceMatcher(None, name.lstrip("-"), option.lstrip("-")).ratio()

    least = min(_NEAR, max(map(similarity, near), default=_NEAR))
    return [name for name in near if similarity(name) >= least]


def _hint(near: Sequence[str], everything: str) -> str:
    return f"did you mean {' or '.join(near)}? {everything}" if near else everything
