"""Find a CRIU that works on this kernel, and cache that, so that no later command pays for the trial."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from crckpt.criu.candidates import Candidate, CriuFacts, candidates, recall, remember
from crckpt.criu.install import PREFIX
from crckpt.errors import HostCannot

if TYPE_CHECKING:
    from crckpt.criu.install.machine import RejectedError

_FAILED = {"dump": "the trial dump fails", "restore": "the trial restore fails"}
_NAMED = ("--criu", "CRCKPT_CRIU", "configuration")
_HINT = "install one that works here: crckpt install-criu; find what is missing: crckpt doctor"


class Criu(Struct, frozen=True):
    """A CRIU that works. `origin` is who named it.

    `passed_over` are sentences on those that the user named and that do not work.
    """

    path: Path
    origin: str
    version: str
    digest: str
    locks_by_nftables: bool
    passed_over: tuple[str, ...] = ()


class Search(Struct, frozen=True):
    """The CRIU that works, if any, and why the candidates before it were rejected."""

    criu: Criu | None
    rejected: tuple[tuple[Candidate, str], ...]


def find(option: Path | None, configured: Path | None, prefix: Path = PREFIX) -> Criu:
    """Find the first CRIU that works: --criu, CRCKPT_CRIU, the configuration, PATH, the private prefix.

    Raises HostCannot, naming each one that was tried and why it does not work.
    """
    found = search(option, configured, prefix=prefix)
    if found.criu is None:
        causes = tuple(f"{candidate.path} ({candidate.origin}): {why}" for candidate, why in found.rejected)
        alone = f": {causes[0]}" if len(causes) == 1 else ""
        raise HostCannot(f"no CRIU works on this host{alone}", hint=_HINT, causes=causes, causes_said=int(bool(alone)))
    # A candidate that nobody named needs no mention if another works.
    named = (pair for pair in found.rejected if pair[0].origin in _NAMED)
    return replace(found.criu, passed_over=tuple(f"{bad.path} ({bad.origin}) was skipped: {why}" for bad, why in named))


def search(
    option: Path | None, configured: Path | None, memory: Path | None = None, *, prefix: Path = PREFIX
) -> Search:
    """Try the candidates in turn until one works. A trial needs root; a cached CRIU needs no trial.

    `memory` is the cache file, if not the user's own.
    """
    rejected: list[tuple[Candidate, str]] = []
    for candidate in candidates(option, configured, prefix):
        # The cache first: a trial takes a dump and a restore.
        facts = recall(candidate.path, memory) or _try(candidate, memory, rejected)
        if facts:
            return Search(Criu(candidate.path, candidate.origin, *facts), tuple(rejected))
    return Search(None, tuple(rejected))


def _try(candidate: Candidate, memory: Path | None, rejected: list[tuple[Candidate, str]]) -> CriuFacts | None:
    if not os.access(candidate.path, os.X_OK):
        rejected.append((candidate, "it does not exist" if not candidate.path.exists() else "it is not executable"))
        return None
    # Rarely needed and slow to import.
    import hashlib

    from crckpt.criu.install.machine import RejectedError
    from crckpt.criu.install.trial import trial
    from crckpt.host.machine import read_criu_version
    from crckpt.host.process import run

    try:
        version = read_criu_version(candidate.path)
        trial(candidate.path)
    except (HostCannot, RejectedError) as error:
        why = explain_rejection(error) if isinstance(error, RejectedError) else error.message
        rejected.append((candidate, why))
        return None
    with candidate.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    lock = run.run([candidate.path, "check", "--no-default-config", "--feature", "network_lock_nftables"])
    facts = CriuFacts(version, digest, lock.ok)
    remember(candidate.path, facts, memory)
    return facts


def explain_rejection(error: RejectedError) -> str:
    """Say why a CRIU has failed the trial: the known cause, else its first complaint."""
    from crckpt.criu.explain import explain

    if error.command not in _FAILED:
        return str(error)
    what = _FAILED[error.command]
    explanation = explain(error.log)
    if explanation.finding:
        return f"{what}: {explanation.finding.what}"
    # Of no complaint at all, the last line.
    lines = explanation.lines or tuple(error.log.strip().splitlines()[-1:])
    return f"{what}: {lines[0].strip()}" if lines else what
