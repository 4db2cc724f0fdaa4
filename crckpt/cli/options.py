"""Options that several commands share, and what they come to: a Context for the operations."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from crckpt.config import Config, parse
from crckpt.errors import IntegrityError, UsageError
from crckpt.host.disk.checked_files import read_checked
from crckpt.host.disk.files import user_directory
from crckpt.ops.context import Context, Progress, silent

Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        envvar="CRCKPT_STORE",
        readable=False,
        help="Where checkpoints are kept.",
        show_default="/var/lib/crckpt",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
CriuPath = Annotated[
    Path | None,
    typer.Option("--criu", help="The CRIU to try first (then CRCKPT_CRIU).", show_default="one that works here"),
]
ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", envvar="CRCKPT_CONFIG", help="Configuration file.", show_default="/etc/crckpt.yaml"),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say which options CRIU got and why.")]
Target = Annotated[
    str, typer.Argument(help="PID, pidfile:PATH, unit:NAME or cgroup:PATH of the tree's root.", metavar="TARGET")
]
Job = Annotated[
    str | None,
    typer.Argument(help="The series that the checkpoint belongs to.", metavar="JOB", show_default="program's name"),
]
Staging = Annotated[
    Path | None,
    typer.Option(
        "--staging", help="Where the images lie until they are stored: a directory.", show_default="in the store"
    ),
]
NoPreflight = Annotated[
    bool, typer.Option("--no-preflight", help="Try it against all advice: CRIU finds out, with the tree frozen.")
]
Ref = Annotated[
    str,
    typer.Argument(
        help="JOB (its newest checkpoint), JOB~2, JOB:TAG, or an id (4 or more of its digits).", metavar="REF"
    ),
]

_MOST_CONFIGURATION: Final = 1 << 20


def milliseconds(text: str, option: str) -> float:
    """A time as 100ms or 0.5s. Raises UsageError, which names the `option`."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s)", text)
    if found is None:
        raise UsageError(f"{option} {text} is no time", hint=f"say {option} 100ms, or {option} 0.5s")
    return float(found[1]) * (1000 if found[2] == "s" else 1)


def context(
    store: Path | None,
    *,
    criu: Path | None = None,
    config: Path | None = None,
    staging: Path | None = None,
    progress: Progress = silent,
) -> Context:
    """Where things are: options before environment (typer reads that), before configuration, before defaults."""
    configured = _configuration(config)
    return Context(
        store=(store or configured.store or default_store()).absolute(),
        criu_option=criu,
        criu_configured=configured.criu,
        staging=staging.absolute() if staging else configured.staging,
        compress=configured.compress,
        config_digest=configured.digest,
        progress=progress,
    )


def default_store() -> Path:
    """/var/lib/crckpt for root, else under XDG_DATA_HOME."""
    if os.geteuid() == 0:
        return Path("/var/lib/crckpt")
    return _home("XDG_DATA_HOME", ".local/share") / "crckpt"


def _configuration(named: Path | None) -> Config:
    path = named or (
        Path("/etc/crckpt.yaml") if os.geteuid() == 0 else _home("XDG_CONFIG_HOME", ".config") / "crckpt.yaml"
    )
    try:
        return parse(_configured(path).decode(), str(path))
    except FileNotFoundError:
        if named is None:
            return Config()
        raise UsageError(f"there is no configuration {named}", hint="leave --config out, or create the file") from None
    except PermissionError as error:
        hint = "set HOME to a directory of this user, or give a configuration: --config"
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}", hint=hint) from error
    except (OSError, IntegrityError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the configuration {path}: {error}", hint="mend it, or give another: --config"
        ) from error


def _configured(path: Path) -> bytes:
    """Where tools manage it, it is a link to a file; it is one of the user's choice, whosever that is."""
    target = path.resolve()
    return read_checked(target, _MOST_CONFIGURATION, owner=target.stat().st_uid)


def _home(variable: str, below: str) -> Path:
    found = user_directory(variable, below)
    if found is None:
        raise UsageError(f"the user {os.geteuid()} has no home directory", hint=f"set HOME, or {variable}")
    return found
