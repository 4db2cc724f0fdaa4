"""All commands together, and the one place where a failure becomes a message and an exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from crckpt.cli import checkpoints, doctor, dump, exchange, restore, show, verify
from crckpt.cli.render import error_document, error_text
from crckpt.errors import CrckptError, StoreUnusable, UsageError

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
app.command("dump", short_help="Checkpoint a running process tree.")(dump.dump)
app.command("restore", short_help="Bring a checkpointed tree back to life.")(restore.restore)
app.command("list", short_help="List checkpoints.")(checkpoints.list_checkpoints)
app.command("show", short_help="Show what a checkpoint holds.")(show.show)
app.command("verify", short_help="Check every digest, down to the last byte.")(verify.verify)
app.command("tag", short_help="Give a checkpoint a name.")(checkpoints.tag)
app.command("rm", short_help="Remove checkpoints.")(checkpoints.remove)
app.command("gc", short_help="Remove what no checkpoint needs any more.")(checkpoints.collect_garbage)
app.command("export", short_help="Write a checkpoint as plain CRIU images.")(exchange.export)
app.command("import", short_help="Take plain CRIU images into the store.")(exchange.import_images)
app.command("doctor", short_help="Say what this host can do, and what is missing.")(doctor.doctor)


_COMMANDS = frozenset(command.name for command in app.registered_commands)


def _say_version(wanted: bool) -> None:
    """Alone on the command line it is answered before typer is loaded."""
    if wanted:
        from crckpt.ops.version import version

        typer.echo(version())
        raise typer.Exit


@app.callback()
def _options(
    _version: bool = typer.Option(
        False, "--version", "-V", callback=_say_version, is_eager=True, help="Print crckpt's and CRIU's version."
    ),
) -> None:
    """Options before the command."""


# What typer raises for what was typed wrongly; it has no public name for it.
_TYPED_WRONGLY: type[Exception] = typer.BadParameter.__bases__[0]


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code."""
    as_json = "--json" in arguments
    command = next((word for word in arguments if not word.startswith("-")), "")
    try:
        code = app(args=list(arguments), prog_name="crckpt", standalone_mode=False)
    except CrckptError as error:
        return _failed(command, error, as_json=as_json)
    except _TYPED_WRONGLY as error:
        said = error.format_message() if hasattr(error, "format_message") else str(error)
        if not said:
            return UsageError.exit_code  # only `crckpt`: its help has been shown
        hint = f"crckpt {command} --help" if command in _COMMANDS else "crckpt --help"
        return _failed(command, UsageError(said, hint=hint), as_json=as_json)
    except BrokenPipeError:
        # Whoever read our output (head, less) has gone: that is no failure. Nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        from crckpt.ops.failures import as_ours

        return _failed(command, as_ours(error, StoreUnusable, f"crckpt {command}"), as_json=as_json)
    except Exception:
        return _bug(command, as_json=as_json)
    return code if isinstance(code, int) else 0


def _failed(command: str, error: CrckptError, *, as_json: bool) -> int:
    if as_json:
        sys.stdout.write(json.dumps(error_document(command, error), indent=2) + "\n")
    else:
        sys.stderr.write(error_text(error))
    return error.exit_code


def _bug(command: str, *, as_json: bool) -> int:
    told = traceback.format_exc()
    last = told.strip().splitlines()[-1]
    error = CrckptError(f"this is a bug in crckpt: {last}", hint="report it with the lines above")
    sys.stderr.write(told)
    return _failed(command, error, as_json=as_json)
