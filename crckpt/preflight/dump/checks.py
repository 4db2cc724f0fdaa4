"""Judge a live tree: what prevents a dump, what the dump would lose, and the options that CRIU needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.causes.finding import distinct, separate
from crckpt.host.observe.tree import Observed
from crckpt.model import MEBIBYTE, DumpOptions
from crckpt.preflight.dump.descriptors import judge_descriptors, outside_terminals
from crckpt.preflight.dump.files import find_deleted_files, judge_files, judge_maps
from crckpt.preflight.dump.namespaces import judge_namespaces, namespaces_to_enter, shares_namespace
from crckpt.preflight.dump.sockets import judge_sockets
from crckpt.preflight.dump.tasks import judge_tasks, user_to_run_as
from crckpt.preflight.dump.tested_kinds import find_untested

UNCONDITIONAL = frozenset({"other-user-namespace", "namespace-owner", "cannot-enter", "container"})
"""Keys of blockers that --no-preflight does not lift: without them the tree could gain rights, or be lost."""

UNTESTED_KIND: Final = "untested-kind"

# The weight of a finding: what is not a warning prevents a dump. Each table is in the order in which users read it.
_LOSSES: Final = ("socket-loses", "multicast-groups", "unix-moved", "exit-signal")
_UNTESTED: Final = (
    *(UNTESTED_KIND, "tcp-keys", "peer-of-another", "maker-is-another", "kernel-file-open", "packet-ring"),
    *("signal-outside", "descriptors-in-flight", *_LOSSES),
)
_WARNINGS: Final = (
    *("outside-pipe-read", "outside-pipe", "eventfd-semaphore", "bpf-map-support", "link-remap", "unnamed-file"),
    *("removed-attributes", "volatile-file", "epolls-unexamined", "lock-shared", "sealed", "on-fault", "unread"),
    *("wall-clock-timer", "mount-namespace", "terminal-of-leader", "in-flight-skipped"),
    *("call-interrupted", "call-interrupted-again"),
    *_UNTESTED,
)


class OptionReason(Struct, frozen=True):
    """An option of CRIU, and why crckpt picked it."""

    option: str
    why: str


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
    # Without connections, `--tcp keep` must not fail on a host that cannot lock a network: CRIU locks it to keep them.
    # But one may be made before the freeze.
    may_connect = tcp == "close" or (locks_by_nftables and any(found.is_tcp for found in observed.sockets))
    picked_tcp = tcp if observed.connections or may_connect else None
    reasons = tuple(_find_reasons(observed, picked_tcp))
    picked = {reason.option for reason in reasons}
    options = DumpOptions(
        tcp=picked_tcp,
        shell_job="--shell-job" in picked,
        file_locks="--file-locks" in picked,
        link_remap="--link-remap" in picked,
        ext_unix_sk="--ext-unix-sk" in picked,
        ghost_limit=_ghost_limit(observed),
        # CRIU locks the whole network of such a tree, by default with iptables, which few hosts have.
        network_lock=None if shares_namespace(observed, "net") else "nftables" if locks_by_nftables else "skip",
        skip_in_flight=skip_in_flight,
    )
    found = (
        # The first blocker becomes the message of a refusal: what concerns the whole tree comes before its parts.
        *judge_namespaces(observed),
        *judge_tasks(observed, names, restarts_calls=restarts_calls),
        *judge_descriptors(observed),
        *judge_maps(observed),
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


def _find_reasons(observed: Observed, tcp: str | None) -> Iterator[OptionReason]:
    root = observed.tree.root
    if tcp:
        yield OptionReason(
            "--tcp-established" if tcp == "keep" else "--tcp-close",
            f"{len(observed.connections)} TCP connections"
            if observed.connections
            else "a TCP connection may be made before the freeze",
        )
    # Without this option CRIU refuses such a tree (criu/pstree.c:304).
    if root.sid not in observed.tree.pids:
        yield OptionReason("--shell-job", f"its session leader {root.sid} is outside the tree")
    elif terminals := outside_terminals(observed):
        yield OptionReason("--shell-job", f"{terminals[0].target} belongs to a terminal outside the tree")
    # Likewise (criu/file-lock.c:110).
    locks = [descriptor for descriptor in observed.descriptors if "\nlock:" in descriptor.info]
    if locks:
        yield OptionReason("--file-locks", f"PID {locks[0].pid} holds a lock on {locks[0].target}")
    # Likewise (criu/files-reg.c:1122). The file still has another name, but CRIU does not know which.
    linked = [path for path, _, links in find_deleted_files(observed) if links]
    if linked:
        yield OptionReason("--link-remap", f"{linked[0]} has another name")
    if any(descriptor.socket_inode in observed.datagram_sockets for descriptor in observed.descriptors):
        yield OptionReason("--ext-unix-sk", "unix datagram sockets may have peers outside the tree")
    if limit := _ghost_limit(observed):
        yield OptionReason(f"--ghost-limit {limit}", "large deleted files are open")


def _ghost_limit(observed: Observed) -> int:
    """Return the bytes for --ghost-limit, with space for growth until the freeze; 0 if the default of 1 MiB will do."""
    # CRIU compares the space that the file takes on its disk (criu/files-reg.c:1030). Of overlayfs it also copies files
    # that have a link, in a lower layer.
    largest = max((size for _, size, links in find_deleted_files(observed) if links <= 1), default=0)
    return 0 if largest < MEBIBYTE // 2 else (largest + largest // 4) // MEBIBYTE * MEBIBYTE + MEBIBYTE
