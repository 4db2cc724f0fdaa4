"""The places where CRIU may be, and a cache of those that worked. Light to load: `--version` needs no more."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from crckpt.criu.install import PREFIX
from crckpt.host.disk.own_files import make_own_directories, read_own


class Candidate(NamedTuple):
    """A path where CRIU may be, and who named it."""

    path: Path
    origin: str


class CriuFacts(NamedTuple):
    """The cached facts about a CRIU that works."""

    version: str
    digest: str
    locks_by_nftables: bool


def candidates(option: Path | None, configured: Path | None, prefix: Path = PREFIX) -> Iterator[Candidate]:
    """List the places to look for CRIU, in order."""
    named = (
        (option, "--criu"),
        (os.environ.get("CRCKPT_CRIU"), "CRCKPT_CRIU"),
        (configured, "configuration"),
        (shutil.which("criu"), "PATH"),
        (prefix / "criu", "private prefix"),
        (_below_home("XDG_DATA_HOME", ".local/share", "crckpt-criu/criu") if os.geteuid() else None, "private prefix"),
    )
    return (Candidate(Path(path).absolute(), origin) for path, origin in named if path)


def recall(path: Path, memory: Path | None = None) -> CriuFacts | None:
    """Return the cached facts about this CRIU, if it worked and neither its file nor the kernel has changed since.

    `memory` is the cache file, if not the user's own.
    """
    place = memory or _memory()
    if place is None:
        return None
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # a damaged cache is no cache
        known = json.loads(read_own(place))[str(path)]
        if known.pop("identity") == _identity(path):
            return CriuFacts(**known)
    return None


def remember(path: Path, facts: CriuFacts, memory: Path | None = None) -> None:
    """Write what is known of a CRIU that works to the cache."""
    # Not needed by a command that finds CRIU in the cache.
    from crckpt.host.disk.files import write_durably

    place = memory or _memory()
    if place is None:
        return
    known: object = None
    with suppress(OSError, ValueError):
        known = json.loads(read_own(place))
    # Drop every CRIU that is gone, so that the cache does not grow for ever.
    entries = {path: facts for path, facts in known.items() if Path(path).exists()} if isinstance(known, dict) else {}
    entries[str(path)] = {"identity": _identity(path), **facts._asdict()}
    with suppress(OSError):  # without the cache crckpt is slower, not wrong
        make_own_directories(place.parent)
        write_durably(place, json.dumps(entries, indent=1).encode(), "memory")


def _identity(path: Path) -> list[object]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, os.uname().release]


def _memory() -> Path | None:
    return Path("/var/cache/crckpt/criu.json") if os.geteuid() == 0 else _below_home("XDG_CACHE_HOME", ".cache")


def _below_home(variable: str, below: str, name: str = "crckpt/criu.json") -> Path | None:
    # Not for root, and not light.
    from crckpt.host.disk.files import user_directory

    found = user_directory(variable, below)
    return found / name if found is not None else None
