"""Decode the configuration file. Messages name the file, the line, the key, and what is allowed.

store: /srv/crckpt        # the store
criu: /opt/criu/bin/criu  # the CRIU to try first, after --criu and CRCKPT_CRIU
staging: /mnt/fast        # where a dump's images are until they are stored (default: in the store)
compress: 3               # zstd level of new packs, -7 (fastest) to 19 (smallest) (default: picked for the data)
"""

from __future__ import annotations

import difflib
import reprlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from crckpt.errors import UsageError

COMPRESS_LEVELS = range(-7, 20)
_PATH: Final = "an absolute path"
_LEVEL: Final = f"a whole number from {COMPRESS_LEVELS[0]} to {COMPRESS_LEVELS[-1]}"
KEYS: Final = {"store": _PATH, "criu": _PATH, "staging": _PATH, "compress": _LEVEL}
"""Each key, and what is allowed for it."""

# A file may have any number of mistakes, and values of any length.
_MOST_SHOWN: Final = 20
_LONGEST_SHOWN: Final = 80


class Config(Struct, frozen=True):
    """The configuration file's entries, None if there is none. `digest` is the SHA-256 of its text."""

    store: Path | None = None
    criu: Path | None = None
    compress: int | None = None
    digest: str | None = None
    staging: Path | None = None


def parse(text: str, name: str) -> Config:
    """Decode a configuration. `name`: how messages call the file. Raises UsageError, which has every mistake."""
    # Slow to import (yaml: 55 ms, measured), and most hosts have no configuration file.
    import hashlib

    import yaml

    try:
        loader = yaml.SafeLoader(text)
        tree = loader.get_single_node()
        document = None if tree is None else loader.construct_document(tree)
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
        raise UsageError(f"{name}: expected `key: value` lines", hint=_correct(name))
    pairs: Any = tree.value if tree is not None else ()
    # Of a key that is there twice, the last counts.
    if mistakes := tuple(_find_mistakes(entries, {str(key.value): key.start_mark.line + 1 for key, _ in pairs})):
        if len(mistakes) == 1:
            raise UsageError(f"{name}, {mistakes[0]}", hint=_correct(name))
        # All at once: else each try would show the next one.
        count = len(mistakes)
        more = (f"and {count - _MOST_SHOWN} more",) if count > _MOST_SHOWN else ()
        raise UsageError(f"{name} has {count} mistakes", hint=_correct(name), causes=mistakes[:_MOST_SHOWN] + more)
    paths = {key: None if entries.get(key) is None else Path(entries[key]) for key in ("store", "criu", "staging")}
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Config(**paths, compress=entries.get("compress"), digest=digest)


def _correct(name: str) -> str:
    return (
        f"correct it, then check it: crckpt config --config {shlex.quote(name)}; known keys: {', '.join(sorted(KEYS))}"
    )


def _find_mistakes(entries: dict[object, object], lines: dict[str, int]) -> Iterator[str]:
    for key, value in entries.items():
        where = f"line {lines[str(key)]}: " if str(key) in lines else ""
        if not isinstance(key, str) or key not in KEYS:
            shown = str(key)[:_LONGEST_SHOWN]
            near = difflib.get_close_matches(shown, KEYS, n=1)
            yield f"{where}unknown key {shown!r}{f', did you mean {near[0]}?' if near else ''}"
        elif not _is_allowed(key, value):
            yield f"{where}{key} must be {KEYS[key]}, not {reprlib.repr(value)[:_LONGEST_SHOWN]}"


def _is_allowed(key: str, value: object) -> bool:
    if KEYS[key] is _PATH:
        return value is None or (isinstance(value, str) and value.startswith("/"))
    # YAML's `yes` is a bool, which Python takes for the integer 1.
    return type(value) is int and value in COMPRESS_LEVELS
