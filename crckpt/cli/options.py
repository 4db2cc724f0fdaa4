"""Options that several commands share, and the Context that they give to an operation."""

from __future__ import annotations

import enum
import os
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from crckpt.cli.help import ADVANCED, WHERE
from crckpt.cli.output import print_progress
from crckpt.config import COMPRESS_LEVELS, Config, parse
from crckpt.errors import HostCannot, IntegrityError, UsageError, error_text
from crckpt.host.disk.checked_files import read_checked
from crckpt.host.disk.files import user_directory
from crckpt.host.process.typed_command import advise_sudo
from crckpt.ops.context import Context, Progress, ignore_progress

Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        envvar="CRCKPT_STORE",
        # Else the parser refuses a directory that we may not read, before crckpt can say what to do.
        readable=False,
        help="Where checkpoints are kept.",
        metavar="DIR",
        show_default="/var/lib/crckpt; unless you are root, ~/.local/share/crckpt",
        rich_help_panel=WHERE,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
CriuPath = Annotated[
    Path | None,
    typer.Option(
        # Without `envvar`: if that CRIU does not work, crckpt says whether the option or the variable named it.
        "--criu",
        help="The CRIU to try first, before $CRCKPT_CRIU.",
        metavar="FILE",
        show_default="one that works here",
        rich_help_panel=WHERE,
    ),
]
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="CRCKPT_CONFIG",
        help="The configuration file.",
        metavar="FILE",
        show_default="/etc/crckpt.yaml; unless you are root, ~/.config/crckpt.yaml",
        rich_help_panel=WHERE,
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show which options CRIU got, and why.")]
Target = Annotated[
    str,
    typer.Argument(
        help="PID, pidfile:PATH, unit:NAME or cgroup:PATH of the tree's root, or a job that runs.", metavar="TARGET"
    ),
]
Job = Annotated[
    str | None,
    typer.Argument(
        help="The name under which checkpoints of this program are kept.",
        metavar="JOB",
        show_default="the name of its script, service or executable",
    ),
]
OtherProgram = Annotated[
    bool,
    typer.Option(
        "--job-of-another-program",
        help="Use JOB even if its last dump was of another program.",
        rich_help_panel=ADVANCED,
    ),
]
Staging = Annotated[
    Path | None,
    typer.Option(
        "--staging",
        help="Where CRIU writes its images.",
        metavar="DIR",
        show_default="in the store",
        rich_help_panel=WHERE,
    ),
]
RestoreStaging = Annotated[
    Path | None,
    typer.Option(
        "--staging",
        help="If the store cannot be written: a directory for CRIU's images and log until the program runs.",
        metavar="DIR",
        show_default="/run/crckpt",
        rich_help_panel=WHERE,
    ),
]
Compress = Annotated[
    int | None,
    typer.Option(
        "--compress",
        min=COMPRESS_LEVELS[0],
        max=COMPRESS_LEVELS[-1],
        help=f"The zstd level, from {COMPRESS_LEVELS[0]} (fast) to {COMPRESS_LEVELS[-1]} (small).",
        metavar="LEVEL",
        show_default="-1 or 1, depending on the data",
        rich_help_panel=ADVANCED,
    ),
]
NoPreflight = Annotated[
    bool,
    typer.Option(
        "--no-preflight",
        help="Skip the checks, and try it even if it will probably fail.",
        rich_help_panel=ADVANCED,
    ),
]
Ref = Annotated[
    str,
    typer.Argument(
        help="The checkpoint: JOB (its newest), JOB~2 (two before that), JOB:TAG, or an id (4 digits or more of it).",
        metavar="REF",
    ),
]


class TcpConnections(enum.StrEnum):
    """The choice for established TCP connections."""

    keep = "keep"
    close = "close"


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


def make_context(
    store: Path | None,
    *,
    criu: Path | None = None,
    config: Path | None = None,
    staging: Path | None = None,
    progress: Progress = ignore_progress,
) -> Context:
    """Make a Context. Options win over the environment (typer reads it), then the configuration, then defaults."""
    configured = read_configuration(config)
    return Context(
        # Absolute: a dump in the background leaves the current directory.
        store=(store or configured.store or default_store()).absolute(),
        criu_option=criu,
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
        return parse(_read(path).decode(), str(path))
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


def _read(path: Path) -> bytes:
    target = path.resolve()  # tools that manage configuration put a link there
    # The user chose the file, so its owner may be anybody.
    return read_checked(target, _MOST_CONFIGURATION, owner=target.stat().st_uid)


def _home(variable: str, below: str) -> Path:
    found = user_directory(variable, below)
    if found is None:
        raise UsageError(
            f"user {os.geteuid()} has no home directory", hint=f"run it with sudo, or set {variable} or HOME"
        )
    return found
