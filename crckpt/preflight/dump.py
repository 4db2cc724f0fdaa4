"""What stands against a dump of a tree, what it would lose, and which options CRIU needs for it."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.host.observe.pipes import pipes, reads, writes
from crckpt.host.observe.tree import Observed
from crckpt.host.observe.waits import RESTARTED
from crckpt.host.proc import Descriptor, Process
from crckpt.model import MEBIBYTE, Options
from crckpt.preflight.blockers import blockers, outside_terminals, shares, user_to_run_as
from crckpt.preflight.kinds import find_untested

_NO_FILES = ("/memfd:", "/dev/zero", "/SYSV", "/[aio]", "/secretmem", "/anon_hugepage")


class Reason(Struct, frozen=True):
    """Why an option was picked."""

    option: str
    why: str


class Plan(Struct, frozen=True):
    """What a dump would do. With blockers it must not begin, and with `untested` it must not end the tree.

    `enter` are kinds of namespaces to run CRIU in, `as_user` the (uid, gid) to run it as, with all our capabilities.
    """

    options: Options
    reasons: tuple[Reason, ...]
    blockers: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    enter: tuple[str, ...]
    as_user: tuple[int, int] | None
    untested: tuple[Finding, ...] = ()


def refusal(process: Process | None, pid: int, own_pid: int, own_ancestors: tuple[int, ...]) -> Finding | None:
    """Why this process cannot be the root of a tree to dump, if it cannot."""
    if process is None:
        return cause("gone").told(pid=pid)
    named = {"pid": pid, "comm": process.comm, "ppid": process.ppid}
    unfit = {
        "init": pid == 1,
        "kernel-thread": process.is_kernel_thread,
        "ourselves": pid == own_pid,
        "ancestor": pid in own_ancestors,
        "zombie": process.state == "zombie",
    }
    return next((cause(key).told(**named) for key, holds in unfit.items() if holds), None)


def plan(
    seen: Observed,
    tcp: Literal["keep", "close"] | None,
    *,
    stop: bool,
    locks_by_nftables: bool,
    names: dict[int, str],
    skip_in_flight: bool = False,
    restarts_calls: bool = True,
) -> Plan:
    """Judge a tree.

    `names` says what the tracers' PIDs are called; `tcp`, `stop` and `skip_in_flight` are what the user chose.
    `restarts_calls` if CRIU gets the preload library.
    """
    enter = _namespaces_to_enter(seen)
    told = tcp if _may_connect(seen, tcp, locks_by_nftables=locks_by_nftables) else None
    reasons = tuple(_reasons(seen, told))
    picked = {reason.option for reason in reasons}
    untested = (
        *(cause("untested-kind").told(kind=kind, where=where) for kind, where in find_untested(seen).items()),
        *_weak(seen),
    )
    options = Options(
        tcp=told,
        shell_job="--shell-job" in picked,
        file_locks="--file-locks" in picked,
        link_remap="--link-remap" in picked,
        ext_unix_sk="--ext-unix-sk" in picked,
        ghost_limit=_ghost_limit(seen),
        # CRIU locks all of such a network, and without being told by iptables, which few hosts have.
        network_lock=None if shares(seen, "net") else "nftables" if locks_by_nftables else "skip",
        skip_in_flight=skip_in_flight,
    )
    against = blockers(seen, tcp, names, locks_by_nftables=locks_by_nftables, skip_in_flight=skip_in_flight)
    return Plan(
        options=options,
        reasons=reasons,
        blockers=tuple(dict.fromkeys(against)),
        warnings=(
            *_warnings(seen, stop=stop),
            *(_skipped(seen) if skip_in_flight else ()),
            *_interrupted(seen, restarts_calls=restarts_calls),
            *untested,
        ),
        enter=enter,
        as_user=user_to_run_as(seen),
        untested=untested,
    )


def _weak(seen: Observed) -> Iterator[Finding]:
    """Find sockets for which a restore is refused without --allow-weaker."""
    comms = {process.pid: process.comm for process in seen.tree.processes}
    for found in seen.weak_sockets:
        named: dict[str, object] = {"fd": found.fd, "pid": found.pid, "comm": comms.get(found.pid, "?")}
        if found.what == "keys":
            yield cause("tcp-keys").told(**named)
        else:
            yield cause("peer-of-another").told(user=found.user, **named)


def _may_connect(seen: Observed, tcp: str | None, *, locks_by_nftables: bool) -> bool:
    """Whether CRIU is to be told what becomes of connections: one may be made between our look and the freeze.

    To keep them it locks the network, which not every host can.
    """
    return (
        bool(seen.connections) or tcp == "close" or (locks_by_nftables and any(found.is_tcp for found in seen.sockets))
    )


def _reasons(seen: Observed, tcp: str | None) -> Iterator[Reason]:
    root = seen.tree.root
    if tcp:
        several = f"{len(seen.connections)} TCP connections"
        one_may_come = "a TCP connection may be made until the freeze"
        yield Reason(
            "--tcp-established" if tcp == "keep" else "--tcp-close", several if seen.connections else one_may_come
        )
    if root.sid not in seen.tree.pids:
        yield Reason("--shell-job", f"its session leader {root.sid} is outside the tree")
    elif terminals := outside_terminals(seen):
        yield Reason("--shell-job", f"{terminals[0].target} belongs to a terminal outside the tree")
    locks = [found for found in seen.descriptors if "\nlock:" in found.info]
    if locks:
        yield Reason("--file-locks", f"PID {locks[0].pid} holds a lock on {locks[0].target}")
    linked = [path for path, _, links in _deleted(seen) if links]
    if linked:
        yield Reason("--link-remap", f"{linked[0]} has another name")
    if any(found.socket_inode in seen.datagram_sockets for found in seen.descriptors):
        yield Reason("--ext-unix-sk", "unix datagram sockets may have peers outside the tree")
    if limit := _ghost_limit(seen):
        yield Reason(f"--ghost-limit {limit}", "large deleted files are open")


def _warnings(seen: Observed, *, stop: bool) -> Iterator[Finding]:
    for pipe in _outside_pipes(seen):
        yield cause("outside-pipe" if writes(pipe) else "outside-pipe-read").told(fd=pipe.fd, pid=pipe.pid)
    for found in seen.descriptors:
        named = {"pid": found.pid, "fd": found.fd, "path": found.target}
        if not stop and _is_deleted_file(found) and found.links:
            yield cause("link-remap").told(**named)
        if "eventfd-semaphore: 1" in found.info:
            yield cause("eventfd-semaphore").told(**named)
        if found.target == "anon_inode:bpf-map":
            yield cause("bpf-map-support").told(**named)
    for lock in seen.shared_locks:
        yield cause("lock-shared").told(pid=lock.pid, fd=lock.fd, path=lock.path, other=lock.other)
    sealed = {mapping.pid: mapping for mapping in reversed(seen.mappings) if mapping.kind == "sealed"}
    for pid, mapping in sorted(sealed.items()):
        yield cause("sealed").told(pid=pid, start=f"{mapping.start:x}")
    for unread in seen.unread:
        yield cause("unread").told(pid=unread.pid, fd=unread.fd, kind=unread.what)
    if _namespaces_to_enter(seen) == ("mnt",):
        yield cause("mount-namespace").told(pid=seen.tree.root.pid, comm=seen.tree.root.comm)


def _skipped(seen: Observed) -> Iterator[Finding]:
    for pid, fd in sorted(seen.passing.queues):
        yield cause("in-flight-skipped").told(pid=pid, fd=fd)


def _interrupted(seen: Observed, *, restarts_calls: bool) -> Iterator[Finding]:
    """Calls that return EINTR, with no handler run: those that the kernel alone could go on with, or all."""
    for wait in seen.waits:
        if wait.call == RESTARTED:
            yield cause("call-interrupted-again").told(pid=wait.pid, tid=wait.tid)
        elif not restarts_calls:
            yield cause("call-interrupted").told(pid=wait.pid, tid=wait.tid, call=wait.call)


def _namespaces_to_enter(seen: Observed) -> tuple[str, ...]:
    root = dict(seen.tree.root.namespaces)
    return tuple(kind for kind, own in seen.own_namespaces if kind in ("pid", "mnt") and root.get(kind, own) != own)


def _outside_pipes(seen: Observed) -> Iterator[Descriptor]:
    """One descriptor of each pipe of which the tree holds one end, and somebody else the other."""
    for inode, ends in pipes(seen.descriptors).items():
        is_inside = any(map(reads, ends)) and any(map(writes, ends))
        if not is_inside and inode not in seen.closed_pipes:
            yield ends[0]


def _ghost_limit(seen: Observed) -> int:
    """Bytes for --ghost-limit, with room for growth until the freeze; 0 where CRIU's default of 1 MiB will do."""
    largest = max((size for _, size in ghosts(seen)), default=0)
    return 0 if largest < MEBIBYTE // 2 else (largest + largest // 4) // MEBIBYTE * MEBIBYTE + MEBIBYTE


def ghosts(seen: Observed) -> frozenset[tuple[str, int]]:
    """(path, bytes) of the files in use that have no name any more: CRIU copies them."""
    return frozenset((path, size) for path, size, links in _deleted(seen) if not links)


def deleted_bytes(seen: Observed, is_in_memory: Callable[[str], bool]) -> int:
    """What the open files without a name take on their disks: CRIU copies it. Mapped ones in memory count as that."""
    mapped = {path for path, *_ in seen.deleted_maps if is_in_memory(path)}
    opened = (found for found in seen.descriptors if _is_deleted_file(found) and not found.links)
    return sum(size for _, size in {(found.target, found.allocated) for found in opened if found.target not in mapped})


def _deleted(seen: Observed) -> Iterator[tuple[str, int, int]]:
    yield from ((found.target, found.most, found.links) for found in seen.descriptors if _is_deleted_file(found))
    yield from (found for found in seen.deleted_maps if not found[0].startswith(_NO_FILES))


def _is_deleted_file(found: Descriptor) -> bool:
    return found.target.endswith(" (deleted)") and stat.S_ISREG(found.mode) and not found.target.startswith("/memfd:")
