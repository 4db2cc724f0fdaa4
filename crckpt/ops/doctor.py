"""What this host can do, and what is missing."""

from __future__ import annotations

import os

from msgspec import Struct

from crckpt.criu.find import Search, search
from crckpt.host.support import Fact, probe
from crckpt.ops.context import Context


class Diagnosis(Struct, frozen=True):
    """All facts. `able` is whether this host can checkpoint at all."""

    facts: tuple[Fact, ...]

    @property
    def able(self) -> bool:
        """Nothing that everything needs is missing."""
        return all(fact.state != "missing" for fact in self.facts)


def doctor(context: Context) -> Diagnosis:
    """Probe this host."""
    return Diagnosis((*_criu(context), *probe(context.store)))


def _criu(context: Context) -> tuple[Fact, ...]:
    if os.geteuid() != 0:
        return (Fact("CRIU", "limited", "not tried: a trial needs root", "sudo crckpt doctor"),)
    found = search(context.criu_option, context.criu_configured)
    passed_over = tuple(
        Fact("CRIU", "limited", f"{candidate.path} ({candidate.origin}): {why}")
        for candidate, why in found.rejected
        if why != "not there"
    )
    return (*passed_over, _verdict(found))


def _verdict(found: Search) -> Fact:
    if found.criu is None:
        return Fact("CRIU", "missing", "none works on this kernel", "scripts/install-criu")
    how = "a trial dump and restore worked"
    return Fact("CRIU", "ok", f"{found.criu.version}, {found.criu.path} ({found.criu.origin}): {how}")
