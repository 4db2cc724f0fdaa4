"""Find a CRIU that works on this kernel, and remember it, so that no later command pays for the trial."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from crckpt.errors import HostCannot

PREFIX = Path("/usr/local/lib/crckpt/criu")
"""Where scripts/install-criu puts a CRIU of its own."""

_NAMED = ("--criu", "CRCKPT_CRIU", "configuration")
_HINT = "scripts/install-criu gets one that works here; crckpt doctor says what is missing"


@dataclass(frozen=True)
class Criu:
    """A CRIU that was found to work. `origin` says by which way it was found.

    `passed_over` are sentences on those that the user named, and that do not work.
    """

    path: Path
    origin: str
    version: str
    digest: str
    locks_by_nftables: bool
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A place where CRIU may be. `origin` says who named it."""

    path: Path
    origin: str


@dataclass(frozen=True)
class Search:
    """What a search came to: the CRIU that works, if any, and why the ones before it were passed over."""

    criu: Criu | None
    rejected: tuple[tuple[Candidate, str], ...]


def find(option: Path | None, configured: Path | None) -> Criu:
    """The first CRIU that works: --criu, CRCKPT_CRIU, the configuration, PATH, the private prefix.

    Raises HostCannot, naming each one that was tried and why it does not work.
    """
    found = search(option, configured)
    if found.criu is None:
        causes = tuple(f"{candidate.path} ({candidate.origin}): {why}" for candidate, why in found.rejected)
        raise HostCannot("no CRIU works on this host", hint=_HINT, causes=causes)
    named = (pair for pair in found.rejected if pair[0].origin in _NAMED)
    return replace(
        found.criu, passed_over=tuple(f"{bad.path} ({bad.origin}) was passed over: {why}" for bad, why in named)
    )


def search(option: Path | None, configured: Path | None, memory: Path | None = None) -> Search:
    """Try the candidates in turn until one works. Needs root for a trial; a remembered one costs nothing.

    `memory` is the file of what worked before, unless it is to be the user's own.
    """
    rejected: list[tuple[Candidate, str]] = []
    for candidate in candidates(option, configured):
        criu = remembered(candidate, memory) or _tried(candidate, memory, rejected)
        if criu:
            return Search(criu, tuple(rejected))
    return Search(None, tuple(rejected))


def candidates(option: Path | None, configured: Path | None) -> Iterator[Candidate]:
    """Where to look, in order."""
    named = (
        (option, "--criu"),
        (_path(os.environ.get("CRCKPT_CRIU")), "CRCKPT_CRIU"),
        (configured, "configuration"),
        (_path(shutil.which("criu")), "PATH"),
        (PREFIX / "criu", "private prefix"),
        (_of_user(), "private prefix"),
    )
    return (Candidate(path.absolute(), origin) for path, origin in named if path)


def remembered(candidate: Candidate, memory: Path | None = None) -> Criu | None:
    """The candidate, if it worked before and neither its file nor the kernel has changed since."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # whatever stands there, it is only memory
        known = json.loads((memory or _memory()).read_text())[str(candidate.path)]
        if known.pop("identity") == _identity(candidate.path):
            return Criu(path=candidate.path, origin=candidate.origin, **known)
    return None


def _tried(candidate: Candidate, memory: Path | None, rejected: list[tuple[Candidate, str]]) -> Criu | None:
    if not os.access(candidate.path, os.X_OK):
        rejected.append((candidate, "not there" if not candidate.path.exists() else "not executable"))
        return None
    # What a trial needs is not loaded where nothing is tried.
    from crckpt.criu.trial import digest_of, locks_by_nftables, trial, version_of

    try:
        version = version_of(candidate.path)
        why = trial(candidate.path)
    except HostCannot as error:
        why = error.message
    if why is not None:
        rejected.append((candidate, why))
        return None
    nft = locks_by_nftables(candidate.path)
    criu = Criu(candidate.path, candidate.origin, version, digest_of(candidate.path), nft)
    _remember(criu, memory or _memory())
    return criu


def _remember(criu: Criu, memory: Path) -> None:
    from crckpt.host.files import write_durably

    known: object = None
    with suppress(OSError, ValueError):
        known = json.loads(memory.read_text())
    # What is no longer there is forgotten: the memory does not grow for ever.
    entries = {path: facts for path, facts in known.items() if Path(path).exists()} if isinstance(known, dict) else {}
    facts = {name: value for name, value in asdict(criu).items() if name not in ("path", "origin", "passed_over")}
    entries[str(criu.path)] = {"identity": _identity(criu.path), **facts}
    with suppress(OSError):  # a host that forgets is slower, not wrong
        memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(memory, json.dumps(entries, indent=1).encode(), "memory")


def _identity(path: Path) -> list[object]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, os.uname().release]


def _memory() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/crckpt/criu.json")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crckpt/criu.json"


def _of_user() -> Path | None:
    if os.geteuid() == 0:
        return None
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "crckpt-criu/criu"


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
