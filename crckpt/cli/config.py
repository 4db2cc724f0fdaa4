"""`crckpt config`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

import typer
from msgspec import Struct

from crckpt.cli import options
from crckpt.cli.format import align
from crckpt.cli.output import emit
from crckpt.config import KEYS, Config

_CRIU_VARIABLE: Final = "CRCKPT_CRIU"
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
    store: Path | None = options.STORE,
    criu: Path | None = options.CRIU_PATH,
    staging: Path | None = options.STAGING,
    compress: int | None = options.COMPRESS,
    config: Path | None = options.CONFIG_PATH,
) -> None:
    """Show the settings that are in force, and where each comes from.

    An option wins over the environment, the environment over the configuration file, and the file over the default. The
    file is /etc/crckpt.yaml; unless you are root, ~/.config/crckpt.yaml. If the file has mistakes, crckpt shows them
    all, each with its line, and exits with 2.
    """
    path, configured = options.find_configuration(config), options.read_configuration(config)
    is_there = configured.digest is not None
    given: dict[str, _Given | None] = {
        "store": _find_given(context, "store", store, "CRCKPT_STORE"),
        "criu": _find_given(context, "criu", criu)
        or (("environment", _CRIU_VARIABLE, variable) if (variable := os.environ.get(_CRIU_VARIABLE)) else None),
        "staging": _find_given(context, "staging", staging),
        "compress": _find_given(context, "compress", compress),
    }
    settings = tuple(_make_setting(key, given[key], configured, path) for key in KEYS)
    document = {"file": path, "file_exists": is_there, "settings": settings}
    emit(document, _lines(path, settings, is_there=is_there), is_answer=True)


_Given: TypeAlias = tuple[Literal["option", "environment"], str, str | int]
"""What kind of source it is, its name, and the value that it gives."""


def _find_given(context: typer.Context, key: str, value: Path | int | None, variable: str = "") -> _Given | None:
    if value is None:
        return None
    shown = str(value.absolute()) if isinstance(value, Path) else value
    source = context.get_parameter_source(key)
    if source is not None and source.name == "ENVIRONMENT":
        return "environment", variable, shown
    return "option", f"--{key}", shown


def _make_setting(key: str, given: _Given | None, configured: Config, path: Path) -> Setting:
    if given is not None:
        return Setting(key, given[2], given[0], given[1], "")
    in_file = getattr(configured, key)
    if in_file is not None:
        return Setting(key, in_file if isinstance(in_file, int) else str(in_file), "file", str(path), "")
    value = str(options.default_store()) if key == "store" else None
    return Setting(key, value, "default", "", _DEFAULTS.get(key, ""))


def _lines(path: Path, settings: tuple[Setting, ...], *, is_there: bool) -> Iterator[str]:
    yield f"configuration file: {path}{'' if is_there else ' (there is none)'}\n"
    rows = (
        (each.key, f"({each.note})" if each.value is None else each.value, each.origin or each.source)
        for each in settings
    )
    yield from align(("key", "value", "from"), rows)
