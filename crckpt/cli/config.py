"""`crckpt config`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import typer
from msgspec import Struct

from crckpt.cli import options
from crckpt.cli.format import align
from crckpt.cli.options import places
from crckpt.cli.output import emit
from crckpt.config import KEYS, Config

_DEFAULTS: Final = {
    "criu": "the first that works: criu on PATH, or crckpt's own",
    "staging": "in the store",
    "compress": "-1 or 1, depending on the data",
}


class Setting(Struct, frozen=True):
    """A setting that is in force.

    - `value`: None if crckpt chooses it when it needs it; `note` then says how
    - `origin`: the option, the variable or the file that `value` comes from; empty for a default
    """

    key: str
    value: str | int | None
    source: Literal["option", "environment", "file", "default"]
    origin: str
    note: str


def config(
    context: typer.Context,
    staging: Path | None = options.STAGING,
    compress: int | None = options.COMPRESS,
) -> None:
    """Show the settings that are in force, and where each comes from.

    An option wins over the environment, the environment over the configuration file, and the file over the default. The
    file is /etc/crckpt.yaml; unless you are root, ~/.config/crckpt.yaml. If the file has mistakes, crckpt shows them
    all, each with its line, and exits with 2.
    """
    path, configured = options.find_configuration(places.config), options.read_configuration(places.config)
    is_there = configured.digest is not None
    given = {"store": places.store, "criu": places.criu, "staging": staging, "compress": compress}
    settings = tuple(_find_setting(context, key, given[key], configured, path) for key in KEYS)
    rows = (
        (each.key, f"({each.note})" if each.value is None else each.value, each.origin or each.source)
        for each in settings
    )
    lines = (
        f"configuration file: {path}{'' if is_there else ' (there is none)'}\n",
        *align(("key", "value", "from"), rows),
    )
    emit({"file": path, "file_exists": is_there, "settings": settings}, lines, is_answer=True)


def _find_setting(
    context: typer.Context, key: str, given: Path | int | None, configured: Config, path: Path
) -> Setting:
    """Find the value of a key; `given` is that of its option."""
    variable = f"CRCKPT_{key.upper()}"
    if given is not None:
        shown = str(given.absolute()) if isinstance(given, Path) else given
        source = context.get_parameter_source(key)
        if source is not None and source.name == "ENVIRONMENT":
            return Setting(key, shown, "environment", variable, "")
        return Setting(key, shown, "option", f"--{key}", "")
    # The parser does not read this one, see `options`.
    if key == "criu" and (named := os.environ.get(variable)):
        return Setting(key, named, "environment", variable, "")
    in_file = getattr(configured, key)
    if in_file is not None:
        return Setting(key, in_file if isinstance(in_file, int) else str(in_file), "file", str(path), "")
    value = str(options.default_store()) if key == "store" else None
    return Setting(key, value, "default", "", _DEFAULTS.get(key, ""))
