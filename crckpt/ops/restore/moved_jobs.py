"""Refuse the restore of a program that runs here, or that another host has or may get: two copies must never run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from crckpt.errors import CrckptError, PreflightRefused, StoreLocked
from crckpt.host import proc
from crckpt.host.target import RestoredTree, record_restored
from crckpt.model import JobName
from crckpt.ops.restore.request import RestoreRequest
from crckpt.store import Checkpoint, Repository
from crckpt.store.move_status import find_moved, find_status
from crckpt.store.moves import Move, read_move, remove_move
from crckpt.store.repository import TIMEOUT_S


def refuse_moved(repository: Repository, checkpoint: Checkpoint, request: RestoreRequest) -> None:
    """Raise PreflightRefused if the job is being moved, or was moved to another host since the checkpoint was made.

    Raises StoreUnusable if that is unknown, because the record cannot be read.
    """
    move = read_move(repository.backend, checkpoint.job)
    if move is None:
        return
    status = find_status(move)
    if not status.prevents_restore(checkpoint, find_moved(repository, status.move)):
        return
    move, when = status.move, f"{status.move.changed:%Y-%m-%d %H:%M:%S} UTC"
    if move.forbids_restore:
        hint, state = f"wait until crckpt (PID {status.crckpt_pid}) has moved it", "is being moved"
        if status.crckpt_pid is None:
            there = "" if status.next_on in (None, move.side) else f", on {move.peer}"
            hint, state = f"finish the move{there}: {status.next_command}", "has an unfinished move"
        what = f"{move.job} {state} {_describe_direction(move)}: a restore could start a second copy"
        raise PreflightRefused(what, hint=hint, is_in_use=True)
    if not request.despite_move:
        message = f"a move of {move.job} from {move.peer} was aborted ({when}), and it may still run there"
        if move.side == "source":
            message = f"{move.job} was moved to {move.peer} ({when}), and may still run there"
        hint = f"if it no longer runs there: crckpt restore {request.ref} --despite-move"
        raise PreflightRefused(message, hint=hint, is_in_use=True)


@contextmanager
def restoring(repository: Repository, job: JobName, *, alone: bool, timeout: float = TIMEOUT_S) -> Iterator[None]:
    """Let nobody else restore the job, or move it; see `Repository.restoring`.

    Raises StoreLocked, which names the move if it is one that has not ended after `timeout` seconds.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(repository.restoring(job, timeout, alone=alone))
        except StoreLocked as locked:
            error = locked
            with suppress(CrckptError, OSError):
                move = read_move(repository.backend, job)
                if move is not None and find_status(move).crckpt_pid == locked.holder is not None:
                    error = locked.reword(
                        f"{job} is being moved {_describe_direction(move)} by crckpt (PID {locked.holder})",
                        hint="wait until it ends; see how far it is: crckpt migrate --list",
                    )
            raise error from None
        yield


def record_running(repository: Repository, checkpoint: Checkpoint, root: int, helpers: Iterable[int]) -> None:
    """Record where the job runs, for the next dump and the next restore, and which processes of ours stay for it."""
    process = proc.read_process(root)
    found = tuple(identity for pid in helpers if (identity := proc.identify(pid)) is not None)
    # Without the record the tree is known by its PID only.
    with suppress(OSError):
        if process is not None:
            identity = proc.identify_live_root(process)
            record_restored(RestoredTree(identity, repository.id, checkpoint.job, checkpoint.id, found))


def forget_move(repository: Repository, checkpoint: Checkpoint) -> None:
    """Remove the record that the job was moved away: it runs here again."""
    with suppress(CrckptError, OSError):
        remove_move(repository.backend, checkpoint.job)


def _describe_direction(move: Move) -> str:
    return f"to {move.peer}" if move.side == "source" else f"here from {move.peer}"
