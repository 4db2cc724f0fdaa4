"""Gather what prevents a dump, what the dump would lose, and the options that CRIU needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.causes.finding import distinct
from crckpt.host.observe.tree import Observed
from crckpt.model import DumpOptions
from crckpt.preflight.dump import descriptors, files, memory, namespaces, pipes, sockets, tasks, terminals
from crckpt.preflight.dump.options import OptionReason, pick_options
from crckpt.preflight.dump.tested_kinds import find_untested

UNCONDITIONAL = frozenset({"other-user-namespace", "namespace-owner", "cannot-enter", "container"})
"""Keys of blockers that --no-preflight does not lift: without them the tree could gain rights, or be lost."""


class DumpPlan(Struct, frozen=True):
    """The plan of a dump. `blockers` prevent it; `untested` findings prevent only a dump that ends the tree;
    of these, `losses` are of what no checkpoint of the tree has now.

    `enter`: the kinds of namespaces in which CRIU must run. `as_user`: the (uid, gid) that CRIU must have, with all our
    capabilities.
    """

    options: DumpOptions
    reasons: tuple[OptionReason, ...]
    blockers: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    enter: tuple[str, ...]
    as_user: tuple[int, int] | None
    untested: tuple[Finding, ...] = ()
    losses: tuple[Finding, ...] = ()

    @property
    def runs_apart(self) -> bool:
        """Whether CRIU runs as another user, or in namespaces of the tree."""
        return bool(self.enter) or self.as_user is not None

    @property
    def is_restorable(self) -> bool:
        """Whether the checkpoint can be restored once the tree has gone on."""
        return not any(finding.key == "link-remap" for finding in self.warnings)


def plan_dump(
    observed: Observed,
    tcp: Literal["keep", "close"] | None,
    *,
    stop: bool,
    locks_by_nftables: bool,
    names: dict[int, str],
    skip_in_flight: bool = False,
    restarts_calls: bool = True,
) -> DumpPlan:
    """Judge a tree.

    `tcp`, `stop` and `skip_in_flight` are the user's choices. `names`: the names of the tracers, by PID.
    `restarts_calls`: CRIU loads the preload library.
    """
    # Without connections, `--tcp keep` must not fail on a host that cannot lock a network.
    may_connect = sockets.may_connect(observed, tcp, locks_by_nftables=locks_by_nftables)
    options, reasons = pick_options(
        observed,
        tcp if may_connect else None,
        locks_by_nftables=locks_by_nftables,
        skip_in_flight=skip_in_flight,
    )
    blockers = find_blockers(observed, tcp, names, locks_by_nftables=locks_by_nftables, skip_in_flight=skip_in_flight)
    losses = (*sockets.find_losses(observed), *tasks.find_losses(observed))
    untested = (
        *(cause("untested-kind").finding(kind=kind, where=where) for kind, where in find_untested(observed).items()),
        *sockets.find_weaker(observed),
        *files.find_weaker(observed),
        *memory.find_rings(observed),
        *losses,
    )
    return DumpPlan(
        options=options,
        reasons=reasons,
        blockers=distinct(blockers),
        warnings=(
            *_find_warnings(observed, stop=stop),
            *(sockets.find_skipped(observed) if skip_in_flight else ()),
            *tasks.find_interrupted_calls(observed, restarts_calls=restarts_calls),
            *untested,
        ),
        enter=namespaces.namespaces_to_enter(observed),
        as_user=tasks.user_to_run_as(observed),
        untested=untested,
        losses=losses,
    )


def find_blockers(
    observed: Observed, tcp: str | None, names: dict[int, str], *, locks_by_nftables: bool, skip_in_flight: bool = False
) -> Iterator[Finding]:
    """Find everything that prevents a dump. Some findings come twice."""
    # The first one becomes the message of a refusal: what concerns the whole tree comes before its parts.
    yield from namespaces.find_blockers(observed)
    yield from tasks.find_blockers(observed, names)
    yield from descriptors.find_blockers(observed)
    yield from pipes.find_blockers(observed)
    yield from memory.find_blockers(observed)
    yield from files.find_blockers(observed)
    yield from sockets.find_blockers(observed)
    yield from terminals.find_blockers(observed)
    yield from sockets.find_connection_blockers(
        observed, tcp, locks_by_nftables=locks_by_nftables, skip_in_flight=skip_in_flight
    )


def _find_warnings(observed: Observed, *, stop: bool) -> Iterator[Finding]:
    yield from pipes.find_warnings(observed)
    yield from descriptors.find_warnings(observed)
    yield from files.find_warnings(observed, stop=stop)
    yield from memory.find_warnings(observed)
    yield from descriptors.find_unread(observed)
    yield from tasks.find_warnings(observed)
    yield from namespaces.find_warnings(observed)
