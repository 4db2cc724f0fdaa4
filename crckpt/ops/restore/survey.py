"""Judge whether a checkpoint can be restored here, before anything of it is restored.

That surveys this host: the state of everything that the checkpoint needs.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import preflight_refusal
from crckpt.criu.find import Criu
from crckpt.host import machine, proc
from crckpt.host.disk import checked_files, packages, space
from crckpt.host.disk.checked_files import held, read_head
from crckpt.host.disk.files import status_of
from crckpt.host.observe import sockets
from crckpt.host.observe.files import OtherNames
from crckpt.host.observe.sock_diag import UnixNames
from crckpt.host.proc import file_users
from crckpt.host.proc.file_users import read_held_locks
from crckpt.host.proc.net import read_netlink
from crckpt.host.process import cgroups
from crckpt.host.process.terminals import read_used_numbers
from crckpt.images.regfile import RegularFile, ghost_image
from crckpt.images.tree import ImageTree
from crckpt.model import PAGE_SIZE, utc_datetime
from crckpt.ops.restore.attempt import RestoreAttempt
from crckpt.ops.restore.attributes import AttributeRestore
from crckpt.ops.restore.launch import find_work_place
from crckpt.ops.restore.open_files import RecordedFiles
from crckpt.ops.restore.outside_ends import socket_outputs
from crckpt.ops.restore.request import RestoreRequest
from crckpt.preflight.restore.checks import UNCONDITIONAL, RestoreVerdict, judge_restore
from crckpt.preflight.restore.descriptors import find_needed_locks
from crckpt.preflight.restore.files import find_changed_paths, find_needed_files, find_needed_path, find_watched_paths
from crckpt.preflight.restore.host import (
    DiskSpace,
    FileState,
    HostResources,
    HostState,
    HugePages,
    Need,
    PlannedRestore,
    Refusal,
    count_huge_pages,
    kernel_needs,
)
from crckpt.preflight.restore.sockets import find_bound_sockets, find_named_sockets, find_netlink_sockets
from crckpt.preflight.restore.tasks import find_needed_ids
from crckpt.store import Checkpoint

if TYPE_CHECKING:
    from crckpt.store.format.index import StoredFile
    from crckpt.store.read.reader import Reader

_REAPED_WITHIN_S = 5.0  # init may take a second or two
# Bytes of its log, and more.
_WRITTEN_BY_CRIU = 1 << 20


class MemoryNeed(Struct, frozen=True):
    """The bytes of memory that a tree needs: `most`, which is quick to find, and `count()`, which may take longer."""

    most: int
    count: Callable[[], int]


def plan_restore(
    request: RestoreRequest,
    checkpoint: Checkpoint,
    tree: ImageTree,
    details: dict[str, Any],
    criu: Criu,
    reading: Reader,
    *,
    is_orphan: bool = False,
    is_rehearsal: bool = False,
) -> PlannedRestore:
    """Plan the restore of a tree: what its checkpoint knows, and what the user chose. `is_orphan`: CRIU ends first."""
    from crckpt.ops.inspect.memory import find_unsound_vdsos  # slow to import

    recorded = RecordedFiles.of_details(details)
    has_terminal = request.tty != "ours" or (request.terminal is not None and not request.detach)
    # A new terminal is the tree's alone.
    is_foreign = request.terminal is not None and request.tty == "ours" and not request.allow_weaker
    return PlannedRestore(
        tree=tree,
        created=checkpoint.created,
        cpu_features=checkpoint.host.cpu_features,
        keeps_connections=(request.tcp or checkpoint.options.tcp) == "keep",
        append_sizes=details.get("append_sizes", {}),
        inodes=recorded.inodes,
        owners=recorded.owners,
        heads=recorded.heads,
        times=recorded.times,
        grown=request.grown,
        written=request.written,
        new_pid_namespace=request.new_pid_namespace,
        has_terminal=has_terminal or is_rehearsal,
        crius=(checkpoint.host.criu_version, criu.version),
        cpu_seconds=0 if is_rehearsal else details.get("cpu_seconds", 0),
        closed_pipes=frozenset(details.get("closed_pipes", ())),
        is_orphan=is_orphan,
        sockets=frozenset() if request.detach else socket_outputs(request.output),
        terminal_owner=os.fstat(request.terminal).st_uid if request.terminal is not None and is_foreign else None,
        may_have_consoles=request.allow_weaker,
        tty=request.tty,
        is_rehearsal=is_rehearsal,
        still_runs=request.still_runs,
        shares_kernel=request.shares_kernel,
        unsound_vdsos=find_unsound_vdsos(reading, tree.processes),
    )


def judge_attempt(
    attempt: RestoreAttempt,
    tree: ImageTree,
    reading: Reader,
    details: dict[str, Any],
    attributes: AttributeRestore,
) -> RestoreVerdict:
    """Judge by the state of this host what the restore of a tree finds here, and what it lacks.

    Raises PreflightRefused if something prevents the restore that its user has not allowed.
    """
    request, checkpoint, kept = attempt.request, attempt.checkpoint, attributes.verdict
    planned = plan_restore(request, checkpoint, tree, details, attempt.criu, reading, is_orphan=not attempt.is_sibling)
    planned = replace(planned, devices=attempt.find_devices(tree) or {})
    verdict = judge_restore(
        planned, survey(planned, reading.files, find_work_place(attempt.context, attempt.repository))
    )
    if kept.blockers:
        raise preflight_refusal(kept.blockers)
    # --no-preflight does not lift this: CRIU would restore the tree without a word, unprotected.
    if kept.weaker and not request.allow_weaker:
        raise preflight_refusal(kept.weaker)
    verdict = replace(
        verdict,
        blockers=(*attempt.running, *verdict.blockers),
        # The user has allowed what is weaker: report it all the same.
        warnings=(*verdict.warnings, *kept.weaker, *kept.lost),
    )
    checks = request.preflight or request.dry_run
    if blockers := tuple(found for found in verdict.blockers if checks or found.key in UNCONDITIONAL):
        raise preflight_refusal(blockers, is_in_use=verdict.is_in_use)
    return verdict


def survey(wanted: PlannedRestore, images: tuple[StoredFile, ...], store: Path) -> HostState:
    """Observe PIDs, files, addresses, locks and resources. Waits some seconds for ended processes to be reaped.

    `images` are the checkpoint's files. Starts no program, unless a file changed: then it looks for its package.
    """
    tree = wanted.tree
    refused, names = find_bind_refusals(wanted), OtherNames()
    pages = tuple(file for file in images if file.pagemap)
    memory = MemoryNeed(sum(file.bytes for file in pages), lambda: _count_bytes(pages))
    now = HostState(
        owners=() if wanted.new_pid_namespace else find_id_users(tree),
        files={
            path: _file(wanted, path, file, names)
            for file in find_needed_files(tree)
            if (path := find_needed_path(file))
        },
        refused=refused,
        interfaces=tuple(socket.if_nameindex()),
        unwatched=frozenset(path for path in find_watched_paths(tree) if not Path(path).exists()),
        released=find_releases(wanted, refused),
        resources=read_resources(wanted, {file.name: file.bytes for file in images}, memory, store),
        us=os.getpid(),
        terminals=read_used_numbers(),
        locks=read_held_locks({path for _, path, _ in find_needed_locks(tree)}),
    )
    # Packages and writers take long to find: only of files that changed.
    suspects = find_changed_paths(wanted, now)
    if not suspects:
        return now
    return replace(
        now,
        packages=packages.find_packages(suspects, wanted.created),
        writers=file_users.find_writers(suspects) if wanted.grown == "rewind" else {},
    )


def find_id_users(tree: ImageTree) -> tuple[proc.IdUser, ...]:
    """Find who uses the ids that the tree needs. Waits some seconds for ended processes to be reaped."""
    wanted = find_needed_ids(tree)
    owners = proc.find_id_users(wanted)
    ended = tuple(owner.pid for owner in owners if owner.state == "zombie")
    if not ended:
        return owners
    # A zombie keeps its PID until it is reaped, which may take a moment.
    proc.wait_until_gone(ended, _REAPED_WITHIN_S)
    return proc.find_id_users(wanted)


def find_bind_refusals(wanted: PlannedRestore, *, may_come_later: bool = True) -> dict[int, Refusal]:
    """Find out why sockets cannot have their addresses and names back, by the id of the socket.

    IPv6 addresses of sockets that listen `may_come_later`.
    """
    found: dict[int, Refusal | None] = {
        # A socket of IPv6 may have an IPv4 address.
        inet.id: sockets.find_bind_refusal(
            str(inet.source.ip or inet.source.host), inet.source.port, use, may_come_later=may_come_later
        )
        for inet, use in find_bound_sockets(wanted)
    }
    names: UnixNames | None = None
    for unix in find_named_sockets(wanted):
        names = names or UnixNames()
        refusal: Refusal | None = "taken" if names.is_abstract_bound(unix.type_number, unix.name) else None
        if not unix.is_abstract:
            refusal = names.find_path_refusal(unix.path)
        # The tree itself may have it, in a directory of both hosts.
        is_own = refusal == "taken" and wanted.shares_kernel and not unix.is_abstract
        found[unix.id] = None if is_own else refusal
        if unix.external:
            found[unix.id] = None if refusal == "taken" else "absent"
    if netlink := tuple(find_netlink_sockets(wanted)):
        used = {(protocol, port) for _, protocol, port in read_netlink(os.getpid())}
        found |= {each.id: "taken" for each in netlink if (each.protocol, each.port_id) in used}
    return {number: refusal for number, refusal in found.items() if refusal is not None}


def find_releases(wanted: PlannedRestore, refused: Mapping[int, Refusal]) -> dict[int, int]:
    """Find out in how many seconds taken addresses are free, by the id of the socket; none that a program has."""
    return {
        inet.id: seconds
        for inet, use in find_bound_sockets(wanted)
        if use == "listen" and refused.get(inet.id) == "taken"
        if (seconds := sockets.find_port_release(inet.source.port)) is not None
    }


def _file(wanted: PlannedRestore, path: str, file: RegularFile, names: OtherNames) -> FileState | None:
    # The tree may have a symbolic link itself open (O_PATH | O_NOFOLLOW): CRIU opens it with these flags.
    found, other = status_of(path, follow=not file.flags & os.O_NOFOLLOW), ""
    if found is None and file.is_deleted:
        # CRIU's link ends when the tree goes on, or is restored.
        other = names.find(path, wanted.inodes.get(file.title, ()))
        found = status_of(str(Path(path).with_name(other)), follow=False) if other else None
        # Once the file has gone, its inode may be that of another user's file, of root's too.
        if found is not None and found.st_uid not in wanted.owners.get(file.title, ()):
            return None
    if found is None:
        return None
    now, is_redirected = b"", False
    with suppress(OSError):  # the file has gone, or another program has a lease on it
        now = (checked_files.read_build_id(path) if file.build_id else None) or b""
    if is_linked := os.path.realpath(path) != path:
        with suppress(OSError), held(path, frozenset(), follow=not file.flags & os.O_NOFOLLOW) as here:
            is_redirected = here.is_redirected
    return FileState(
        found.st_size,
        found.st_mode,
        utc_datetime(found.st_mtime),
        utc_datetime(found.st_ctime),
        now.hex(),
        wanted.grown == "rewind" and is_linked,
        found.st_uid,
        found.st_ino,
        read_head(path) if path in wanted.heads else b"",
        other,
        is_redirected,
    )


def read_resources(wanted: PlannedRestore, sizes: Mapping[str, int], needed: MemoryNeed, store: Path) -> HostResources:
    """Read what this host has of what the tree needs. `sizes` are those of the images by name, in bytes."""
    tree = wanted.tree
    asked = kernel_needs(tree, sizes, keeps_connections=wanted.keeps_connections, mounts_proc=wanted.new_pid_namespace)
    # Each deleted file that a restore makes again. Streams take no space; files do, until the tree runs.
    deleted = {file.remap.target: file.path for file in tree.regular_files if file.remap is not None and file.is_ghost}
    written = [
        (space.nearest_existing(Path(path).parent), sizes.get(ghost_image(at), 0)) for at, path in deleted.items()
    ]
    written += [(store, sum(sizes.values()))] if tree.is_read_by_position else []
    beside = sum(size for directory, size in written if space.is_in_memory(directory))
    memory, free = needed.most + beside, space.free_memory()
    if memory > free:
        # Only where memory is scarce: to count shared pages once takes a while.
        memory, free = needed.count() + beside, space.free_memory(swap=True)
    disks: dict[int, tuple[Path, int]] = {}
    for directory, size in ((store, _WRITTEN_BY_CRIU), *written):
        device = directory.stat().st_dev
        first, before = disks.get(device, (directory, 0))
        disks[device] = (first, before + size)
    return HostResources(
        arch=machine.arch(),
        cpu_features=frozenset(machine.cpu_features()),
        missing=tuple(need for need in asked if not _is_met(need)),
        pid_limit=machine.pid_limit(),
        tasks=cgroups.tasks_left(),
        memory=memory,
        free_memory=free,
        disks=tuple(DiskSpace(str(place), size, space.free_disk(place)) for place, size in disks.values()),
        huge_pages=tuple(
            HugePages(size, count, space.free_huge_pages(size)) for size, count in count_huge_pages(tree).items()
        ),
    )


def _is_met(need: Need) -> bool:
    match need.key:
        case "no-address-family":
            return machine.has_family(need.number)
        case "seccomp-again":
            return machine.has_seccomp_filters()
        case "no-guard-pages":
            from crckpt.host.syscalls.userfaultfd import has_guard_pages  # for few trees

            return has_guard_pages()
        case "security-module":
            return machine.has_security_module(need.name)
        case "sysctl-read-only":
            return os.access("/proc/sys/kernel/hostname", os.W_OK)
        case "clocks-jump":
            return machine.has_clocks()
    # Slow to import, and for few trees. These probes of doctor may run in our own process: both only open something.
    from crckpt.host.probes import network

    trial = {"no-tcp-repair": network.tcp_repair, "no-tun": network.tun}[need.key]
    return trial().state != "missing"


def _count_bytes(pages: tuple[StoredFile, ...]) -> int:
    """Bytes of memory in these images; pages that processes share count once."""
    # As in CRIU, parent and child share a page if both have the same page at the same address.
    import numpy as np  # slow to load, and needed only if memory is scarce

    from crckpt.store.format.extents import ZERO

    found = []
    for file in pages:
        extents = file.extents
        counts = extents["count"].astype(np.int64)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        one = np.empty(len(within), [("address", "<u8"), ("pack", "<u4"), ("page", "<u8")])
        one["address"] = np.repeat(extents["first"], counts) + within.astype(np.uint64)
        one["pack"] = np.repeat(extents["pack"], counts)
        one["page"] = np.where(one["pack"] == ZERO, 0, np.repeat(extents["page"], counts) + within.astype(np.uint64))
        found.append(one)
    return len(np.unique(np.concatenate(found))) * PAGE_SIZE if found else 0
