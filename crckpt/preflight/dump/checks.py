"""Judge a live tree: what prevents a dump, what the dump would lose, and the options that CRIU needs."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.causes.finding import distinct, separate
from crckpt.host.observe.tree import Observed
from crckpt.model import DumpOptions
from crckpt.preflight.dump.descriptors import judge_descriptors
from crckpt.preflight.dump.files import judge_files
from crckpt.preflight.dump.memory import judge_memory
from crckpt.preflight.dump.namespaces import judge_namespaces, namespaces_to_enter
from crckpt.preflight.dump.options import OptionReason, pick_options
from crckpt.preflight.dump.sockets import judge_sockets, may_connect
from crckpt.preflight.dump.tasks import judge_tasks, user_to_run_as
from crckpt.preflight.dump.tested_kinds import find_untested

UNCONDITIONAL = frozenset({"other-user-namespace", "namespace-owner", "cannot-enter", "container"})
"""Keys of blockers that --no-preflight does not lift: without them the tree could gain rights, or be lost."""

UNTESTED_KIND: Final = "untested-kind"

# The weight of a finding: what is not a warning prevents a dump. Each table is in the order in which users read it.
_LOSSES: Final = ("socket-loses", "unix-moved", "exit-signal")
_UNTESTED: Final = (UNTESTED_KIND, "tcp-keys", "peer-of-another", "kernel-file-open", "packet-ring", *_LOSSES)
_WARNINGS: Final = (
    *("outside-pipe-read", "outside-pipe", "eventfd-semaphore", "bpf-map-support", "link-remap", "unnamed-file"),
    *("volatile-file", "epolls-unexamined", "lock-shared", "sealed", "on-fault", "unread", "wall-clock-timer"),
    *("mount-namespace", "in-flight-skipped", "call-interrupted", "call-interrupted-again", *_UNTESTED),
)


class DumpPlan(Struct, frozen=True):
    """The plan of a dump: `blockers` prevent it.

    `enter`: the kinds of namespaces in which CRIU must run. `as_user`: the (uid, gid) that CRIU must have, with all our
    capabilities.
    """

    options: DumpOptions
    reasons: tuple[OptionReason, ...]
    blockers: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    enter: tuple[str, ...]
    as_user: tuple[int, int] | None

    @property
    def untested(self) -> tuple[Finding, ...]:
        """The warnings that prevent a dump which ends the tree."""
        return tuple(found for found in self.warnings if found.key in _UNTESTED)

    @property
    def losses(self) -> tuple[Finding, ...]:
        """The warnings of what no checkpoint of the tree has now."""
        return tuple(found for found in self.warnings if found.key in _LOSSES)

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
    picked_tcp = tcp if may_connect(observed, tcp, locks_by_nftables=locks_by_nftables) else None
    options, reasons = pick_options(
        observed, picked_tcp, locks_by_nftables=locks_by_nftables, skip_in_flight=skip_in_flight
    )
    found = (
        # The first blocker becomes the message of a refusal: what concerns the whole tree comes before its parts.
        *judge_namespaces(observed),
        *judge_tasks(observed, names, restarts_calls=restarts_calls),
        *judge_descriptors(observed),
        *judge_memory(observed),
        *judge_files(observed, stop=stop),
        *judge_sockets(observed, tcp, locks_by_nftables=locks_by_nftables, skip_in_flight=skip_in_flight),
        *(cause(UNTESTED_KIND).finding(kind=kind, where=where) for kind, where in find_untested(observed).items()),
    )
    blockers, warnings = separate(found, _WARNINGS)
    return DumpPlan(
        options=options,
        reasons=reasons,
        blockers=distinct(blockers),
        warnings=warnings,
        enter=namespaces_to_enter(observed),
        as_user=user_to_run_as(observed),
    )
