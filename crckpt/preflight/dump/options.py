"""Pick CRIU's options for a dump from the tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from crckpt.host.observe.tree import Observed
from crckpt.model import MEBIBYTE, DumpOptions
from crckpt.preflight.dump.descriptors import outside_terminals
from crckpt.preflight.dump.files import find_deleted_files
from crckpt.preflight.dump.namespaces import shares_namespace


class OptionReason(Struct, frozen=True):
    """An option of CRIU, and why crckpt picked it."""

    option: str
    why: str


def pick_options(
    observed: Observed, tcp: Literal["keep", "close"] | None, *, locks_by_nftables: bool, skip_in_flight: bool
) -> tuple[DumpOptions, tuple[OptionReason, ...]]:
    """Pick the options, each with its reason."""
    reasons = tuple(_find_reasons(observed, tcp))
    picked = {reason.option for reason in reasons}
    options = DumpOptions(
        tcp=tcp,
        shell_job="--shell-job" in picked,
        file_locks="--file-locks" in picked,
        link_remap="--link-remap" in picked,
        ext_unix_sk="--ext-unix-sk" in picked,
        ghost_limit=_ghost_limit(observed),
        # CRIU locks the whole network of such a tree, by default with iptables, which few hosts have.
        network_lock=None if shares_namespace(observed, "net") else "nftables" if locks_by_nftables else "skip",
        skip_in_flight=skip_in_flight,
    )
    return options, reasons


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
