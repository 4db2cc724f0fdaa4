"""Decode the configuration file. Messages name the file and the key.

store: /srv/crckpt        # the store
criu: /opt/criu/bin/criu  # the CRIU to try first, after --criu and CRCKPT_CRIU
staging: /mnt/fast        # where a dump's images are until they are stored (default: in the store)
compress: 3               # zstd level of new packs, -7 (fastest) to 19 (smallest) (default: picked for the data)
"""

from __future__ import annotations

import reprlib
from pathlib import Path

from msgspec import Struct

from crckpt.errors import UsageError

COMPRESS_LEVELS = range(-7, 20)
_KEYS = ("compress", "criu", "staging", "store")


class Config(Struct, frozen=True):
    """The configuration file's entries, None if there is none. `digest` is the SHA-256 of its text."""

    store: Path | None = None
    criu: Path | None = None
    compress: int | None = None
    digest: str | None = None
    staging: Path | None = None


def parse(text: str, name: str) -> Config:
    """Decode a configuration. `name`: how messages call the file. Raises UsageError."""
    # Slow to import (yaml: 55 ms, measured), and most hosts have no configuration file.
    import hashlib

    import yaml

    try:
        document = yaml.safe_load(text)
    except RecursionError:
        raise UsageError(f"{name} is not valid YAML: it is nested too deeply", hint=f"correct {name}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"{name} is not YAML{where}: {error.problem}", hint=f"correct {name}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an invalid date
        raise UsageError(f"{name} is not YAML: {' '.join(str(error).split())}", hint=f"correct {name}") from error
    entries = {} if document is None else document
    if not isinstance(entries, dict):
        raise UsageError(f"{name}: expected `key: value` lines", hint=f"known keys: {', '.join(_KEYS)}")
    unknown = sorted(str(key) for key in entries if key not in _KEYS)
    if unknown:
        raise UsageError(f"{name}: unknown key {unknown[0]!r}", hint=f"known keys: {', '.join(_KEYS)}")
    return Config(
        store=_path(entries, "store", name),
        criu=_path(entries, "criu", name),
        compress=_level(entries["compress"], name) if "compress" in entries else None,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        staging=_path(entries, "staging", name),
    )


def _path(entries: dict[object, object], key: str, name: str) -> Path | None:
    value = entries.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.startswith("/"):
        raise UsageError(f"{name}: {key} must be an absolute path, not {reprlib.repr(value)}", hint=f"correct {name}")
    return Path(value)


def _level(value: object, name: str) -> int:
    # YAML's `yes` is a bool, which Python takes for the integer 1.
    if isinstance(value, bool) or not isinstance(value, int) or value not in COMPRESS_LEVELS:
        raise UsageError(
            f"{name}: compress must be a whole number from -7 to 19, not {reprlib.repr(value)}", hint=f"correct {name}"
        )
    return value
