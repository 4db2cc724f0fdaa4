"""Hosts that ssh knows by a name of the user's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_CONFIGURATION: Final = ".ssh/config"
# Bytes: a configuration is read while the user types.
_MOST_BYTES: Final = 1 << 20
_PATTERN: Final = frozenset("*?!")


def find_hosts(typed: str) -> Iterator[tuple[str, str]]:
    """Find the hosts of ~/.ssh/config that begin with what is typed, after USER@ too."""
    user, at, _ = typed.rpartition("@")
    lines: list[str] = []
    with suppress(OSError, RuntimeError), (Path.home() / _CONFIGURATION).open(errors="replace") as file:
        lines = file.read(_MOST_BYTES).splitlines()
    for line in lines:
        # ssh_config(5): keywords in any case, and `=` or blanks before the value.
        keyword, *names = line.replace("=", " ", 1).split()[:64] or [""]
        if keyword.lower() == "host":
            yield from ((f"{user}{at}{name.strip(chr(34))}", "") for name in names if not _PATTERN & set(name))
