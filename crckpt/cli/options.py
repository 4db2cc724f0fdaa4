"""Options that several commands share, and the Context that they give to an operation."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import typer

from crckpt.cli.help import ADVANCED, COMMON, WHERE
from crckpt.cli.output import print_progress
from crckpt.config import COMPRESS_LEVELS, Config, parse
from crckpt.errors import HostCannot, IntegrityError, UsageError, error_text
from crckpt.host.disk.checked_files import read_checked
from crckpt.host.disk.files import user_directory
from crckpt.host.process.typed_command import advise_sudo
from crckpt.ops.context import Context, Progress, ignore_progress


def option(
    names: str, text: str, panel: str = COMMON, *, default: object = None, shown: str | bool = True, **settings: Any
) -> Any:
    """Declare an option as it is typed: `--staging DIR`. `shown` is how the help shows its default."""
    words = names.split()
    typed = [word for word in words if word.startswith("-")]
    value = " ".join(words[len(typed) :]) or None
    return typer.Option(
        default, *typed, metavar=value, help=text, rich_help_panel=panel, show_default=shown, **settings
    )


def flag(names: str, text: str, panel: str = COMMON, *, default: bool | None = False, **settings: Any) -> Any:
    """Declare an option without a value: `--verbose -v`."""
    return option(names, text, panel, default=default, **settings)


def argument(name: str, text: str, *, default: object = ..., shown: str | bool = True, **settings: Any) -> Any:
    """Declare an argument. Without a `default` it must be given."""
    return typer.Argument(default, metavar=name, help=text, show_default=shown, **settings)


_STORE: Final = option(
    # Else the parser refuses a directory that we may not read, before crckpt can say what to do.
    "--store DIR",
    "Where checkpoints are kept.",
    WHERE,
    envvar="CRCKPT_STORE",
    readable=False,
    shown="/var/lib/crckpt; unless you are root, ~/.local/share/crckpt",
)
_CRIU: Final = option(
    # Without `envvar`: if that CRIU does not work, crckpt says whether the option or the variable named it.
    "--criu FILE",
    "The CRIU to try first, before $CRCKPT_CRIU.",
    WHERE,
    shown="one that works here",
)
_CONFIG: Final = option(
    "--config FILE",
    "The configuration file.",
    WHERE,
    envvar="CRCKPT_CONFIG",
    shown="/etc/crckpt.yaml; unless you are root, ~/.config/crckpt.yaml",
)
_PLACES: Final = {"store": _STORE, "criu": _CRIU, "config": _CONFIG}
VERBOSE: Final = flag("--verbose -v", "Show which options CRIU got, and why.")
TARGET: Final = argument("TARGET", "PID, pidfile:PATH, unit:NAME or cgroup:PATH of the tree's root, or a running job.")
JOB: Final = argument(
    "JOB",
    "The name under which checkpoints of this program are kept.",
    default=None,
    shown="the name of its script, service or executable",
)
OTHER_PROGRAM: Final = flag(
    "--job-of-another-program", "Use JOB even if its last dump was of another program.", ADVANCED
)
STAGING: Final = option("--staging DIR", "Where CRIU writes its images.", WHERE, shown="in the store")
RESTORE_STAGING: Final = option(
    "--staging DIR",
    "If the store cannot be written: a directory for CRIU's images and log until the program runs.",
    WHERE,
    shown="/run/crckpt",
)
COMPRESS: Final = option(
    "--compress LEVEL",
    f"The zstd level, from {COMPRESS_LEVELS[0]} (fast) to {COMPRESS_LEVELS[-1]} (small).",
    ADVANCED,
    min=COMPRESS_LEVELS[0],
    max=COMPRESS_LEVELS[-1],
    shown="-1 or 1, depending on the data",
)
NO_PREFLIGHT: Final = flag("--no-preflight", "Skip the checks, and try it even if it will probably fail.", ADVANCED)
REF: Final = argument(
    "REF", "The checkpoint: JOB (its newest), JOB~2 (two before that), JOB:TAG, or an id (at least its first 4 digits)."
)


class Places:
    """Where things are, as the command line says: see `with_places`."""

    store: Path | None = None
    criu: Path | None = None
    config: Path | None = None


places: Final = Places()


def with_places(command: Callable[..., object], names: Collection[str]) -> Callable[..., object]:
    """Give a command the options of these `places`, after its own."""

    @wraps(command)
    def run(**given: Any) -> object:
        for name in _PLACES:
            setattr(places, name, given.pop(name, None))
        return command(**given)

    signature = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=Path | None)
        for name, declared in _PLACES.items()
        if name in names
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    return run


Tcp: TypeAlias = Literal["keep", "close"]
"""The choice for established TCP connections."""

LEAST_BANDWIDTH: Final = 16 << 10
"""Bytes per second of a move, at least."""

# Bytes: a file that was named by mistake (a log) must not fill memory.
_MOST_CONFIGURATION: Final = 1 << 20


def parse_milliseconds(text: str, option: str) -> float:
    """Parse a time as 100ms or 0.5s. Raises UsageError, which names the `option`."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s)", text)
    if found is None:
        raise UsageError(f"{option} {text} is not a time", hint=f"for example: {option} 100ms, {option} 0.5s")
    return float(found[1]) * (1000 if found[2] == "s" else 1)


def parse_bandwidth(text: str, option: str) -> int:
    """Parse bytes per second as 800K, 50M or 1.5G (powers of 1024). Raises UsageError, which names the `option`."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([KMG])", text)
    speed = int(float(found[1]) * 1024 ** (1 + "KMG".index(found[2]))) if found is not None else 0
    # With less, a heartbeat could be delayed too long behind data.
    if speed < LEAST_BANDWIDTH:
        raise UsageError(
            f"{option} {text} is not a bandwidth of at least 16K bytes per second",
            hint=f"for example: {option} 50M, {option} 800K",
        )
    return speed


def require_root(doing: str) -> None:
    """Check that crckpt runs as root; `doing` begins with `to`. Raises HostCannot.

    Call it before `make_context`, which may fail for the home directory of a user who must use sudo anyway.
    """
    if os.geteuid() != 0:
        raise HostCannot(f"root is needed {doing}", hint=advise_sudo())


def make_context(*, staging: Path | None = None, progress: Progress = ignore_progress) -> Context:
    """Make a Context. Options win over the environment (typer reads it), then the configuration, then defaults."""
    configured = read_configuration(places.config)
    return Context(
        # Absolute: a dump in the background leaves the current directory.
        store=(places.store or configured.store or default_store()).absolute(),
        criu_option=places.criu,
        criu_configured=configured.criu,
        staging=staging.absolute() if staging else configured.staging,
        compress=configured.compress,
        config_digest=configured.digest,
        progress=progress,
        say=print_progress,
    )


def default_store() -> Path:
    """/var/lib/crckpt for root, else a directory in XDG_DATA_HOME."""
    if os.geteuid() == 0:
        return Path("/var/lib/crckpt")
    return _home("XDG_DATA_HOME", ".local/share") / "crckpt"


def find_configuration(named: Path | None) -> Path:
    """Return the path of the configuration file, which may not exist: `named`, or that of this user."""
    if named is not None:
        return named
    return Path("/etc/crckpt.yaml") if os.geteuid() == 0 else _home("XDG_CONFIG_HOME", ".config") / "crckpt.yaml"


def read_configuration(named: Path | None) -> Config:
    """Read the configuration file; without one, nothing is configured. Raises UsageError."""
    path = find_configuration(named)
    try:
        target = path.resolve()  # tools that manage configuration put a link there
        # The user chose the file, so its owner may be anybody.
        content = read_checked(target, _MOST_CONFIGURATION, owner=target.stat().st_uid)
        return parse(content.decode(), str(path))
    except FileNotFoundError:
        if named is None:
            return Config()
        raise UsageError(f"there is no configuration file {named}", hint="create it, or leave out --config") from None
    except PermissionError as error:
        hint = "run it with sudo, set HOME to a directory of this user, or name another file: --config FILE"
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}", hint=hint) from error
    except (OSError, IntegrityError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the configuration {path}: {error_text(error)}",
            hint="correct the file, or name another: --config FILE",
        ) from error


def _home(variable: str, below: str) -> Path:
    found = user_directory(variable, below)
    if found is None:
        raise UsageError(
            f"user {os.geteuid()} has no home directory", hint=f"run it with sudo, or set {variable} or HOME"
        )
    return found
