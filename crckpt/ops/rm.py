"""Remove checkpoints, and the network locks of stopped trees that can no longer be restored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from crckpt.errors import CrckptError, PreflightRefused, StoreUnusable, UsageError
from crckpt.host import proc
from crckpt.host.network import packet_filter
from crckpt.model import CheckpointId, RunId
from crckpt.ops.context import Context
from crckpt.store import Checkpoint, Repository
from crckpt.store.layout import pack_name
from crckpt.store.move_status import find_moved, find_status
from crckpt.store.moves import read_last_moves, read_move
from crckpt.store.read.details import read_details


class PlannedRemoval(Struct, frozen=True):
    """The checkpoints that refs name.

    `irreplaceable`: those that alone have the last state of a program, which their dump ended.
    """

    ids: tuple[CheckpointId, ...]
    irreplaceable: tuple[Checkpoint, ...]


class RemovalResult(Struct, frozen=True):
    """The ids that were removed, and the nftables tables of the network locks that were lifted."""

    removed: tuple[CheckpointId, ...]
    lifted_locks: tuple[str, ...]


def plan_removal(
    context: Context, refs: tuple[str, ...], *, whole_jobs: bool = False, dry_run: bool = False
) -> PlannedRemoval:
    """Find the checkpoints that `refs` name; with `whole_jobs` these are jobs, and all their checkpoints are meant.

    Raises NoSuchCheckpoint; UsageError if one is no job; PreflightRefused if an unfinished move needs one; without
    `dry_run` StoreUnusable if none can be removed.
    """
    repository = context.repository()
    if not dry_run:
        # Nobody is asked about what cannot be done.
        repository.require_writable()
    with repository.shared():
        # Resolve all refs first: JOB~1 means another checkpoint once JOB is gone.
        names = (_find_job(repository, ref) if whole_jobs else (repository.resolve(ref),) for ref in refs)
        found = tuple(dict.fromkeys(identity for ids in names for identity in ids))
        _refuse_moving(repository, found)
        return PlannedRemoval(found, tuple(_find_irreplaceable(repository, found)))


def rm(context: Context, ids: tuple[CheckpointId, ...]) -> RemovalResult:
    """Remove all of these checkpoints; if one does not exist, none of them.

    Raises NoSuchCheckpoint, StoreLocked, and PreflightRefused if an unfinished move needs one.
    """
    repository = context.repository()
    with repository.exclusive():
        _refuse_moving(repository, ids)
        locks = [lock for identity in ids for lock in _find_locks(repository, identity)]
        repository.remove(ids)
    # Lift the locks only now: as long as the checkpoint could be restored, its connections needed them.
    lifted = [packet_filter.lift_lock(lock, place) for lock, places in locks for place in places]
    return RemovalResult(ids, tuple(table for table in lifted if table))


def estimate_freed_bytes(context: Context, ids: tuple[CheckpointId, ...]) -> int | None:
    """Count the bytes that gc would free after the removal of these checkpoints, besides what it would free now.

    None if that is unknown, because a checkpoint that stays cannot be read.
    """
    repository = context.repository()
    with repository.shared():
        found, unreadable = repository.read_all()
        if any(bad.id not in ids for bad in unreadable):
            return None
        kept = {use.digest for checkpoint in found if checkpoint.id not in ids for use in checkpoint.packs}
        doomed = {use.digest for checkpoint in found if checkpoint.id in ids for use in checkpoint.packs}
        packs = (pack_name(digest) for digest in doomed - kept)
        return sum(repository.backend.disk_usage(name) for name in packs if repository.backend.exists(name))


def _find_job(repository: Repository, job: str) -> tuple[CheckpointId, ...]:
    found, unreadable = repository.read_all()
    ids = (*(each.id for each in found if each.job == job), *(each.id for each in unreadable if each.job == job))
    if not ids:
        identity = repository.resolve(job)  # its error suggests similar names
        hint = f"leave out --all to remove this one, or name its job: crckpt list shows the job of {identity[:12]}"
        raise UsageError(f"--all removes all checkpoints of a job, and {job} is no job", hint=hint)
    return ids


def _refuse_moving(repository: Repository, ids: tuple[CheckpointId, ...]) -> None:
    """Raise PreflightRefused if an unfinished move needs one of these checkpoints, or StoreUnusable if that is unknown.

    On both sides it may be the only state of the tree.
    """
    moves, unreadable = read_last_moves(repository.backend)
    unfinished = [status for status in map(find_status, moves) if not status.move.is_over]
    for identity in ids if unfinished or unreadable else ():
        checkpoint = None
        # A damaged checkpoint can be removed, too.
        with suppress(CrckptError, OSError):
            checkpoint = repository.get(identity)
        for status in unfinished:
            move = status.move
            is_needed = move.checkpoint == identity
            if move.checkpoint is None and checkpoint is not None:
                # The next round counts from it.
                is_needed = checkpoint.job == move.job and checkpoint.created >= move.began
            if is_needed:
                direction = f"to {move.peer}" if move.side == "source" else f"here from {move.peer}"
                hint = f"wait until crckpt (PID {status.crckpt_pid}) has moved it"
                if status.crckpt_pid is None:
                    there = f", on {move.peer}" if status.next_on not in (None, move.side) else ""
                    hint = f"finish the move first{there}: {status.next_command}"
                what = f"nothing was removed: {identity[:12]} is needed to move {move.job} {direction}"
                raise PreflightRefused(what, hint=hint, is_in_use=True)
        for bad in unreadable:
            if checkpoint is None or checkpoint.job == bad.job:
                raise StoreUnusable(f"nothing was removed: {bad.why}", hint=bad.remedy)


def _find_irreplaceable(repository: Repository, ids: Iterable[CheckpointId]) -> Iterator[Checkpoint]:
    """Find the checkpoints that alone have the last state of a program: their dump ended it, and nobody restored it."""
    candidates = []
    for identity in ids:
        # A damaged checkpoint can be removed, too.
        with suppress(CrckptError, OSError):
            checkpoint = repository.get(identity)
            if not checkpoint.stopped or repository.is_restored(identity):
                continue
            # Restored by an older crckpt, or from a copy of the store.
            process = proc.read_process(checkpoint.tree[0].pid)
            if process is not None and process.comm == checkpoint.tree[0].comm:
                continue
            # It may run on another host since this checkpoint was made.
            move = read_move(repository.backend, checkpoint.job)
            is_left = move is not None and move.leaves_tree_with_peer
            if not (move and is_left and find_status(move).includes(checkpoint, find_moved(repository, move))):
                candidates.append(checkpoint)
    # Reading all manifests takes a while in a large store.
    others = sorted(repository.checkpoints(), key=lambda each: each.order, reverse=True) if candidates else ()
    for stopped in candidates:
        newer = (each for each in others if each.job == stopped.job and each.order > stopped.order)
        if not any(_may_continue(repository, stopped, each) for each in newer):
            yield stopped


def _may_continue(repository: Repository, stopped: Checkpoint, newer: Checkpoint) -> bool:
    """Return whether the program of the newer checkpoint may be the stopped one, which ran again.

    It is another one, such as a second worker, if it ran already when the first was stopped.
    """
    # Damaged details: older versions did not record these either.
    with suppress(CrckptError, OSError):
        before, after = (read_details(repository, each) for each in (stopped, newer))
        asked, root, other = before.get("uptime_ticks"), before.get("root"), after.get("root")
        if asked is not None and root is not None and other is not None:
            return bool(other["boot_id"] != root["boot_id"] or other["start"] > asked)
    return True


def _find_locks(repository: Repository, identity: CheckpointId) -> Iterator[tuple[RunId, tuple[Path | None, ...]]]:
    """Yield the id of the CRIU run whose network lock may still exist, and the network namespaces that may have it."""
    # A damaged checkpoint can be removed too; its locks are not known.
    with suppress(CrckptError, OSError):
        checkpoint = repository.get(identity)
        if checkpoint.stopped and checkpoint.run_id:
            # A network namespace of the tree ends with the tree, unless it has a name.
            named = packet_filter.find_named_networks() if checkpoint.options.network_lock == "nftables" else ()
            yield checkpoint.run_id, (None, *named)
