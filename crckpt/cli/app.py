"""All commands together, and the one place where a failure becomes a message and an exit code."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import typer

from crckpt.cli import command_in
from crckpt.cli.render import error_document, error_text, nobody_reads
from crckpt.errors import CrckptError, HostCannot, StoreUnusable, UsageError
from crckpt.host import cold_start
from crckpt.host.process.address_space import is_out_of_memory
from crckpt.host.process.signals import interrupts_put_off

_COMMANDS: Final = {
    "dump": ("dump:dump", "Checkpoint a running process tree."),
    "pre-dump": ("pre_dump:pre_dump", "Copy a tree's memory while it runs."),
    "restore": ("restore:restore", "Bring a checkpointed tree back to life."),
    "rehearse": ("rehearse:rehearse", "Try a restore where it changes nothing."),
    "trackers": ("trackers:trackers", "List what follows trees between dumps, or end it."),
    "list": ("checkpoints:list_checkpoints", "List checkpoints."),
    "show": ("show:show", "Show what a checkpoint holds."),
    "diff": ("diff:diff", "Say what differs between two checkpoints."),
    "core": ("core:core", "Write a process of a checkpoint as a core file, for gdb."),
    "verify": ("verify:verify", "Check every digest, down to the last byte."),
    "tag": ("checkpoints:tag", "Give a checkpoint a name."),
    "rm": ("checkpoints:remove", "Remove checkpoints."),
    "gc": ("checkpoints:collect_garbage", "Remove what no checkpoint needs any more."),
    "export": ("exchange:export", "Write a checkpoint as plain CRIU images."),
    "import": ("exchange:import_images", "Take plain CRIU images into the store."),
    "doctor": ("doctor:doctor", "Say what this host can do, or what stands against a checkpoint."),
    "explain": ("explain:explain", "Say why CRIU failed, by its log."),
    "report": ("report:report", "Make an archive for a bug report."),
}
"""Where each command is, and what it does in a few words."""


def _say_version(wanted: bool) -> None:
    """Alone on the command line it is answered before typer is loaded."""
    if wanted:
        from crckpt.ops.version import version

        typer.echo(version())
        raise typer.Exit


def _options(
    _version: bool = typer.Option(
        False, "--version", "-V", callback=_say_version, is_eager=True, help="Print crckpt's and CRIU's version."
    ),
) -> None:
    """Options before the command."""


def _app(command: str) -> typer.Typer:
    """What understands the command line: with one command alone, or with all where it is none of them (help)."""
    app = typer.Typer(
        name="crckpt",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="Checkpoint running Linux process trees and bring them back: later, on this host, or on another.",
        epilog="Start with `crckpt doctor`, then `crckpt dump PID JOB` and `crckpt restore JOB`.",
    )
    app.callback()(_options)
    # To load and register them all would take longer than most of them take.
    for name in (command,) if command in _COMMANDS else _COMMANDS:
        place, said = _COMMANDS[name]
        module, _, function = place.partition(":")
        found = getattr(importlib.import_module(f"crckpt.cli.{module}"), function)
        app.command(name, short_help=said)(found)
    return app


# What typer raises for what was typed wrongly; it has no public name for it.
_TYPED_WRONGLY: type[Exception] = typer.BadParameter.__bases__[0]


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code."""
    as_json = "--json" in arguments
    command = command_in(arguments)
    try:
        with interrupts_put_off():
            app = _app(command)
        code = app(args=list(arguments), prog_name="crckpt", standalone_mode=False)
        sys.stdout.flush()
        if command in _COMMANDS:
            cold_start.note(command)
    except CrckptError as error:
        return _failed(command, error, as_json=as_json)
    except _TYPED_WRONGLY as error:
        said = error.format_message() if hasattr(error, "format_message") else str(error)
        if not said:
            return UsageError.exit_code  # only `crckpt`: its help has been shown
        hint = f"crckpt {command} --help" if command in _COMMANDS else "crckpt --help"
        return _failed(command, UsageError(said, hint=hint), as_json=as_json)
    except (BrokenPipeError, SystemExit):  # a help text, which typer writes
        nobody_reads(sys.stdout)
        return 0
    except Exception as error:
        return _unexpected(command, error, as_json=as_json)
    return code if isinstance(code, int) else 0


def _unexpected(command: str, error: Exception, *, as_json: bool) -> int:
    if is_out_of_memory(error):
        return _failed(command, _no_memory(command), as_json=as_json)
    if isinstance(error, OSError):
        from crckpt.ops.failures import as_ours

        return _failed(command, as_ours(error, StoreUnusable, f"crckpt {command}"), as_json=as_json)
    return _bug(command, as_json=as_json)


def _failed(command: str, error: CrckptError, *, as_json: bool) -> int:
    if as_json:
        with suppress(OSError):
            sys.stdout.write(json.dumps(error_document(command, error), indent=2) + "\n")
            sys.stdout.flush()
            return error.exit_code
    with suppress(OSError):
        sys.stderr.write(error_text(error))
    return error.exit_code


def _no_memory(command: str) -> HostCannot:
    hint = "free memory, or raise the limit: ulimit -v unlimited; systemd: MemoryMax=infinity"
    return HostCannot(f"the host has too little memory for crckpt {command}", hint=hint)


def _bug(command: str, *, as_json: bool) -> int:
    told = traceback.format_exc()
    last = told.strip().splitlines()[-1]
    error = CrckptError(
        f"this is a bug in crckpt: {last}",
        hint="report it with the lines above and the archive that crckpt report makes",
    )
    sys.stderr.write(told)
    return _failed(command, error, as_json=as_json)
